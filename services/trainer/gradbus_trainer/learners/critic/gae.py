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


def vtrace_corrections(values: Floats, rewards: Floats, log_ratios: Floats, value_lambda: float, gamma: float = 1.0) -> Floats:
    """v_t - V_t of one sequence by V-trace (Espeholt et al. 2018, arXiv:1802.01561, equation 1), float64 `[T]`.

    With rho_t = min(1, pi0 / mu) of a token, c_t = lambda · rho_t and delta_t = r_t + gamma · V_{t+1} - V_t,

        v_t - V_t = rho_t · delta_t + gamma · c_t · (v_{t+1} - V_{t+1}),    v_{T+1} = V_{T+1} = 0

    so that v is the value of pi0 where both policies are near each other. At a ratio of 1 it is GAE with lambda. `log_ratios` has
    log pi0 / mu.
    """
    weights = np.exp(np.minimum(log_ratios, 0.0))
    deltas = weights * (rewards + gamma * np.append(values[1:], 0.0) - values)
    decays = gamma * value_lambda * weights
    found, later = np.empty_like(deltas), 0.0
    for t in reversed(range(len(deltas))):
        later = found[t] = deltas[t] + decays[t] * later
    return found


def policy_lambda(spec: CriticSpec, length: int) -> float:
    """The policy's lambda for a sequence of `length` tokens: fixed, or max(0, 1 - 1 / (alpha · length)) (VAPO, arXiv:2504.05118)."""
    return spec.policy_lambda if spec.length_alpha is None else max(0.0, 1.0 - 1.0 / (spec.length_alpha * max(1, length)))
