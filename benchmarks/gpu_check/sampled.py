"""Samples of an engine beside the trainer's forward pass over the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup
from gradbus_trainer.step.batch import TrainSample

GROUP: Final = 8
"""Samples of a prompt."""
MISMATCH: Final = 0.05
"""Largest mean of exp|difference| minus 1 in bfloat16; other stacks bound the mismatch of a family so before they train it."""


def prompt_groups(vocabulary: int, prompts: int, length: int) -> list[PromptGroup]:
    """Random prompts of about `length` tokens, eight samples each."""
    draw = np.random.default_rng(length)
    return [
        PromptGroup(str(n), tuple(draw.integers(vocabulary, size=length - n % 3).tolist()), tuple(range(n * GROUP, (n + 1) * GROUP)))
        for n in range(prompts)
    ]


def drawn(found: Sequence[GroupCompletion]) -> list[tuple[tuple[int, ...], bytes]]:
    """Tokens and log-probabilities of all samples, to be compared to the bit."""
    return [(completion.token_ids, completion.logprobs) for group in found for completion in group.completions]


@torch.no_grad()
def differences(
    folder: Path, groups: Sequence[PromptGroup], found: Sequence[GroupCompletion], dtype: torch.dtype, device: str
) -> np.ndarray:
    """By sampled token, the absolute difference of its log-probability from that of the model in `folder`, in nats."""
    rows = [_row(group, one) for group, samples in zip(groups, found, strict=True) for one in samples.completions]
    logprobs, _ = packed_logprobs(load_causal_lm(folder, dtype, device), rows, 1.0)
    sampled = np.concatenate([np.frombuffer(one.logprobs, "<f4") for samples in found for one in samples.completions])
    return np.abs(sampled - logprobs.float().cpu().numpy())


def mismatch(apart: np.ndarray) -> float:
    """Mean ratio to the trainer's probabilities, minus 1."""
    return float(np.exp(apart).mean() - 1.0)


def _row(group: PromptGroup, completion: Completion) -> TrainSample:
    unused = np.zeros(len(completion.token_ids), np.float32)
    return TrainSample(np.array(group.prompt_ids, np.int32), np.array(completion.token_ids, np.int32), unused, unused > 1, unused)
