"""The embedded engine: Llama and Qwen2 families on plain torch, bit-reproducible on a CPU.

config    what the caller sets        shape     which models it runs
weights   the tensors held, by name   versions  how a version's files become these
cache     keys and values of slots    attention one query over pages of them
arithmetic  products and attention, fast or with the trainer's bits
buffers   memory of a batch shape     model     one forward
prefill   prompts into the cache, in chunks of one shape
requests  what is being sampled       rows      arrays of the slots
scheduler slots, queue, decode step   loop      the thread that owns it all, and the asyncio side
"""

from __future__ import annotations

from gradbus_rollout.engines.torch.config import TorchEngineConfig
from gradbus_rollout.engines.torch.loop import TorchEngine

__all__ = ["TorchEngine", "TorchEngineConfig"]
