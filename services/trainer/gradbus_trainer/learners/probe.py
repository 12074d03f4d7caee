"""Log-probabilities of a fixed text under a version: a server that claims to have the version must compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.lora import adapters_off, is_adapted
from gradbus_trainer.step.batch import TrainSample

_TOKENS = 32
Forward = Callable[[Sequence[TrainSample]], tuple[torch.Tensor, torch.Tensor]]


@torch.no_grad()
def version_probe(model: torch.nn.Module, vocab_size: int, forward: Forward) -> VersionProbe:
    """Log-probabilities of tokens drawn from a fixed seed, by `forward` through `model`: with its adapters, and without."""
    ids = np.random.default_rng(0).integers(0, vocab_size, _TOKENS).astype(np.int32)
    rest = np.ones(_TOKENS - 1, np.float32)
    row = TrainSample(ids[:1], ids[1:], rest, rest > 0, rest)
    logprobs, _ = forward([row])
    base = logprobs
    if is_adapted(model):
        with adapters_off(model):
            base, _ = forward([row])
    return VersionProbe(token_ids=ids.astype(ID_DTYPE).tobytes(), logprobs=_bytes(logprobs), base_logprobs=_bytes(base))


def _bytes(logprobs: torch.Tensor) -> bytes:
    return logprobs.float().cpu().numpy().astype(LOGPROB_DTYPE).tobytes()
