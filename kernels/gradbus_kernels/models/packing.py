"""Splits a run's samples into micro-batches and packs them without padding, by `operators.prefix_shared_attention.packing`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gradbus.errors import ModelError
from gradbus.formats.expert_config import ExpertsConfig
from gradbus_kernels.operators import PackedGroups
from gradbus_kernels.operators.prefix_shared_attention.packing import pack_arrays, worth_sharing

Int32 = NDArray[np.int32]
Int16 = NDArray[np.int16]


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


class Packed(Protocol):
    """A batch of N tokens, and the R response tokens that it predicts."""

    @property
    def selected(self) -> torch.Tensor:
        """int64 `[R]`: the position whose hidden state predicts each response token, in order of sequence and position."""
        ...

    @property
    def targets(self) -> torch.Tensor:
        """int64 `[R]`: the response tokens."""
        ...


OWN_CHOICE: Final = -1
"""In `routes`, in place of every expert of a token: the model chooses them."""
Row = TypeVar("Row", bound=TokenSequence)


def split_by_tokens(
    sequences: Sequence[Row], budget: int, shares_prompts: bool = True, owners: Sequence[int] | None = None
) -> Iterator[Sequence[Row]]:
    """Micro-batches of neighbouring sequences with at most `budget` packed tokens; a longer sequence is one by itself. Keeps the order.

    A prompt counts once if `pack` shares it, so a group stays together if it fits. Neighbours with the same number in `owners` are never
    divided: together they count as one sequence.
    """
    if sum(len(sequence.prompt_ids) + len(sequence.token_ids) for sequence in sequences) <= budget:
        yield from [sequences] if sequences else []
        return
    start = used = begin = 0
    groups: dict[bytes, tuple[int, int]] = {}  # rows of each prompt, and tokens of their responses
    for end in _ends(len(sequences), owners):
        more = _add(groups, sequences[begin:end], shares_prompts)
        if begin > start and used + more > budget:
            yield sequences[start:begin]
            groups.clear()
            start, used, more = begin, 0, _add(groups, sequences[begin:end], shares_prompts)
        used += more
        begin = end
    if start < len(sequences):
        yield sequences[start:]


def _ends(count: int, owners: Sequence[int] | None) -> Iterator[int]:
    """Where sequences may be divided."""
    return (end for end in range(1, count + 1) if owners is None or end == count or owners[end] != owners[end - 1])


def _add(groups: dict[bytes, tuple[int, int]], sequences: Sequence[TokenSequence], shares_prompts: bool) -> int:
    """Adds sequences to the groups of a micro-batch; the packed tokens that they take in it."""
    more = 0
    for sequence in sequences:
        prompt, length, response = sequence.prompt_ids.tobytes(), len(sequence.prompt_ids), len(sequence.token_ids)
        rows, tokens = groups.get(prompt, (0, 0)) if shares_prompts else (0, 0)
        more += response + _prompt_tokens(length, rows + 1, tokens + response) - _prompt_tokens(length, rows, tokens)
        groups[prompt] = rows + 1, tokens + response
    return more


def _prompt_tokens(length: int, rows: int, responses: int) -> int:
    """Packed tokens of a prompt for this many rows, whose responses have this many tokens together."""
    return length * (1 if worth_sharing(length, rows, responses - rows) else rows)


def pack(sequences: Sequence[TokenSequence], device: torch.device, routes: Sequence[Int16] | None = None) -> PackedGroups:
    """Packs `sequences` (at least one); rows with equal prompts share it where that saves time. `routes`: see `pack_arrays`."""
    return pack_arrays([sequence.prompt_ids for sequence in sequences], [sequence.token_ids for sequence in sequences], device, routes)


def given_routes(sequences: Sequence[TokenSequence], experts: ExpertsConfig) -> list[Int16]:
    """Of each sequence the experts of its P prompt and T response tokens, `[P + T, layers with experts, k]`.

    They are its attribute `routes`; a sequence without it chooses everywhere. Raises ModelError for routes of another model.
    """
    found: list[Int16] = []
    for sequence in sequences:
        shape = len(sequence.prompt_ids) + len(sequence.token_ids), len(experts.layers), experts.chosen
        routes: Int16 | None = getattr(sequence, "routes", None)
        if routes is None:
            routes = np.full(shape, OWN_CHOICE, np.int16)
        if routes.shape != shape or routes.max() >= experts.count:
            given, expected = f"{list(routes.shape)} up to expert {routes.max()}", f"{list(shape)} of {experts.count} experts"
            raise ModelError(f"a sample has routes {given}, the model has {expected}; sample with the run's own model")
        found.append(routes)
    return found
