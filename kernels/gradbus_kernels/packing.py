"""Samples of a run as micro-batches without padding: see `gradbus_kernels.operators.prefix_packing`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gradbus_kernels.operators import PackedGroups, pack_groups

Int32 = NDArray[np.int32]


class TokenSequence(Protocol):
    """A prompt and what was sampled after it."""

    @property
    def prompt_ids(self) -> Int32:
        """[P], at least one token."""
        ...

    @property
    def token_ids(self) -> Int32:
        """[T], at least one token."""
        ...


Row = TypeVar("Row", bound=TokenSequence)


def split_by_tokens(sequences: Sequence[Row], budget: int) -> Iterator[Sequence[Row]]:
    """Neighbouring sequences of at most `budget` tokens together; a longer one goes alone. Order is kept."""
    start = used = 0
    for end, sequence in enumerate(sequences):
        size = len(sequence.prompt_ids) + len(sequence.token_ids)
        if end > start and used + size > budget:
            yield sequences[start:end]
            start, used = end, 0
        used += size
    if start < len(sequences):
        yield sequences[start:]


def pack(sequences: Sequence[TokenSequence], device: torch.device) -> PackedGroups:
    """Packs `sequences` (at least one); rows with equal prompts share one where that pays."""
    prompts = [torch.tensor(sequence.prompt_ids) for sequence in sequences]
    return pack_groups(prompts, [torch.tensor(sequence.token_ids) for sequence in sequences], device)
