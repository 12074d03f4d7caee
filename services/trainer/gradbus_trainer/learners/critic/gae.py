"""Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gradbus.spec import CriticSpec

Floats = NDArray[np.float64]


def generalized_advantages(
    values: Sequence[Floats], rewards: Sequence[Floats], lambdas: Sequence[float], gamma: float = 1.0
) -> Sequence[Floats]:
    """A_t = delta_t + gamma · lambda · A_{t+1}, delta_t = r_t + gamma · V_{t+1} - V_t, of B sequences; float64 `[T]` each.

    `values` has V_t of each trainable token, read before the token; tokens that the policy did not choose are left out, so a tool's
    output between two of them changes nothing. `rewards` has r_t of the same tokens. The value after a sequence's last token is 0.
    """
    lengths = [len(row) for row in values]
    table, given = np.zeros((2, max(lengths, default=0) + 1, len(values)))
    for column, (row, reward) in enumerate(zip(values, rewards, strict=True)):
        table[: len(row), column] = row
        given[: len(row), column] = reward
    deltas = gamma * table[1:] - table[:-1] + given[:-1]
    decay = gamma * np.asarray(lambdas)
    # A step backwards in time for all sequences at once. Past its end a sequence has no delta, so nothing enters it from there.
    rows = list(accumulate(deltas[::-1], lambda later, delta: delta + decay * later))[::-1]
    found = np.stack(rows) if rows else deltas
    return [found[:length, column] for column, length in enumerate(lengths)]


def policy_lambda(spec: CriticSpec, length: int) -> float:
    """The policy's lambda for a sequence of `length` tokens: fixed, or max(0, 1 - 1 / (alpha · length)) (VAPO, arXiv:2504.05118)."""
    return spec.policy_lambda if spec.length_alpha is None else max(0.0, 1.0 - 1.0 / (spec.length_alpha * max(1, length)))
