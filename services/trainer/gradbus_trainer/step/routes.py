"""The experts that a group's tokens were given by the sampler, decoded for training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradbus.formats.tokens import route_dtype
from gradbus.v1.group_pb2 import Group, RoutedExperts
from gradbus_kernels.models.packing import OWN_CHOICE
from gradbus_trainer.step.batch import TrainSample

_Routes = NDArray[np.int16]


def sample_routes(group: Group, prompt: int, lengths: Sequence[int]) -> Sequence[_Routes | None]:
    """`TrainSample.routes` of each sample, for a prompt and responses of these lengths; None for all if the run replays no routes.

    Raises ValueError for content that is not whole rows.
    """
    if not group.HasField("routed_experts"):
        return [None] * len(lengths)
    shape = group.routed_experts
    shared = _decoded(shape, shape.prompt, prompt)
    own = (_decoded(shape, sample.routed_experts, length) for sample, length in zip(group.samples, lengths, strict=True))
    return [np.concatenate([shared, routes]) for routes in own]


def count_routes(rows: Sequence[TrainSample]) -> tuple[int, int]:
    """Tokens of a group's rows that have routes, and that have none. The prompt counts once; a row's last token is no input."""
    replayed = total = 0
    for number, row in enumerate(rows):
        if row.routes is not None:
            own = row.routes[len(row.prompt_ids) if number else 0 : -1, 0, 0]
            replayed += int(np.count_nonzero(own != OWN_CHOICE))
            total += len(own)
    return replayed, total - replayed


def _decoded(shape: RoutedExperts, content: bytes, tokens: int) -> _Routes:
    """The routes of so many tokens. Tokens after the last row choose, and so does one whose experts are no choice: not distinct."""
    found = np.full((tokens, shape.layers, shape.chosen), OWN_CHOICE, np.int16)
    rows = np.frombuffer(content, route_dtype(shape.experts)).reshape(-1, shape.layers, shape.chosen)[:tokens]
    ordered = np.sort(rows, axis=-1)
    valid = (ordered[..., -1] < shape.experts).all(-1) & (ordered[..., 1:] != ordered[..., :-1]).all((-2, -1))
    found[: len(rows)][valid] = rows[valid]
    return found
