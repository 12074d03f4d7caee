"""A real SGLang server behind the engine seam, over HTTP: launched by the worker, or attached to.

config   what a run and a worker decide     tensors  safetensors files, read without torch
folder   a version as the server reads it   api      the server's routes, each with a deadline
launch   the server's processes             guard    ends them with the worker
server   up, down, up again                 slots    samples in flight, and the gate of a load
draft    one sample, piece by piece         install  a version into the server, with proof
adapters a version that is adapters         shelf    adapters that the server has at a time
engine   all of it together
"""

from __future__ import annotations

from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.engine import SGLangEngine

__all__ = ["SGLangConfig", "SGLangEngine", "SGLangSettings"]
