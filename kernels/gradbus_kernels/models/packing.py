"""Splits a run's samples into micro-batches and packs them without padding, by `operators.prefix_shared_attention.packing`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gradbus_kernels.operators import PackedGroups
from gradbus_kernels.operators.prefix_shared_attention.packing import pack_arrays, worth_sharing

Int32 = NDArray[np.int32]


class TokenSequence(Protocol):
    """A prompt and the tokens sampled after it."""

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
    """Micro-batches of neighbouring sequences with at most `budget` packed tokens; a longer sequence is one by itself. Keeps the order.

    A prompt counts once if `pack` shares it, so a group stays together if it fits.
    """
    start = used = 0
    rows_of: Counter[bytes] = Counter()
    for end, sequence in enumerate(sequences):
        prompt = sequence.prompt_ids.tobytes()
        more = len(sequence.token_ids) + _prompt_tokens(sequence, rows_of[prompt] + 1) - _prompt_tokens(sequence, rows_of[prompt])
        if end > start and used + more > budget:
            yield sequences[start:end]
            start, used = end, 0
            rows_of.clear()
            more = len(sequence.token_ids) + len(sequence.prompt_ids)
        used += more
        rows_of[prompt] += 1
    if start < len(sequences):
        yield sequences[start:]


def _prompt_tokens(sequence: TokenSequence, rows: int) -> int:
    """Packed tokens of its prompt for this many rows."""
    return len(sequence.prompt_ids) * (1 if worth_sharing(len(sequence.prompt_ids), rows) else rows)


def pack(sequences: Sequence[TokenSequence], device: torch.device) -> PackedGroups:
    """Packs `sequences` (at least one); rows with equal prompts share it where that saves time."""
    return pack_arrays([sequence.prompt_ids for sequence in sequences], [sequence.token_ids for sequence in sequences], device)
