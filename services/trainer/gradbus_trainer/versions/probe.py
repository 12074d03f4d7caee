"""What a version computes for a fixed text: a server that says it has the version is asked for the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.lora import adapters_off, is_adapted
from gradbus_trainer.step.batch import TrainSample

_TOKENS = 32
Forward = Callable[[Sequence[TrainSample]], tuple[torch.Tensor, torch.Tensor]]


@torch.no_grad()
def version_probe(model: torch.nn.Module, vocab_size: int, forward: Forward) -> VersionProbe:
    """Log-probabilities of tokens drawn once for all, by `forward` through `model`: with its adapters, and without."""
    ids = np.random.default_rng(0).integers(0, vocab_size, _TOKENS).astype(np.int32)
    rest = np.ones(_TOKENS - 1, np.float32)
    row = TrainSample(ids[:1], ids[1:], rest, rest > 0, 0.0)
    logprobs, _ = forward([row])
    base = logprobs
    if is_adapted(model):
        with adapters_off(model):
            base, _ = forward([row])
    return VersionProbe(token_ids=ids.astype("<i4").tobytes(), logprobs=_bytes(logprobs), base_logprobs=_bytes(base))


def _bytes(logprobs: torch.Tensor) -> bytes:
    return logprobs.float().cpu().numpy().astype("<f4").tobytes()
