"""The embedded engine: the families of `gradbus.formats.model_families` on plain torch, bit-reproducible on a CPU.

engine     `Engine`: the thread of the engine and its asyncio side
scheduler  slots, queue and decode step     samples    calls under way, and state of the slots as arrays
prefill    prompts into the cache, in chunks of fixed shapes
prefixes   keys and values of prompts that are kept for later ones
model      one forward                      arithmetic products and attention, fast or with the trainer's bits
attention  the seam between products and cache; attention over pages
cache      keys and values in pages         buffers    memory of a batch shape
gpu        attention, prefill and decode step on a GPU
weights    the tensors, by name             version_format  a version's files as weights
config     settings
"""

from __future__ import annotations

from gradbus_rollout.engines.torch.config import TorchEngineConfig
from gradbus_rollout.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine", "TorchEngineConfig"]
