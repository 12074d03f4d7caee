"""Controllers: coefficients of the loss that change from step to step, as functions of a state and of what a step observed.

A state is numbers by name, and is a part of each checkpoint; it is empty before the first step. A coefficient without a controller is the
spec's in every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gradbus.spec import AlgorithmSpec, EntropyControlSpec, KlControlSpec

ControllerState = Mapping[str, float]
_KL: Final = "kl"
_ENTROPY: Final = "entropy"
_ENTROPY_SEEN: Final = "entropy_seen"
_MOST_ERROR: Final = 0.2
"""Relative error beyond which a KL changes its coefficient no faster."""

_LEAST_KL: Final = 1e-8
_MOST_KL: Final = 1e3


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The coefficients of one step."""

    kl: float
    entropy: float


@dataclass(frozen=True, slots=True)
class Observed:
    """What a step that trained the policy observed, as its metrics have it; nats a token."""

    kl: float
    entropy: float
    samples: int
    """Samples that a step takes."""


def step_coefficients(spec: AlgorithmSpec, state: ControllerState) -> Coefficients | None:
    """The coefficients of the step after those that made `state`; None if no controller changes them."""
    if spec.kl_control is None and spec.entropy_control is None:
        return None
    entropy = spec.entropy
    if (control := spec.entropy_control) is not None:
        is_low = state.get(_ENTROPY_SEEN, math.inf) <= control.target
        entropy = state.get(_ENTROPY, spec.entropy) if is_low else 0.0
    return Coefficients(state.get(_KL, spec.kl), entropy)


def after_step(spec: AlgorithmSpec, state: ControllerState, observed: Observed) -> ControllerState:
    """The state after a step."""
    found = dict(state)
    if (kl := spec.kl_control) is not None:
        found[_KL] = adapted_kl(state.get(_KL, spec.kl), observed, kl)
    if (entropy := spec.entropy_control) is not None:
        found[_ENTROPY] = adapted_entropy(state.get(_ENTROPY, spec.entropy), observed.entropy, entropy)
        found[_ENTROPY_SEEN] = observed.entropy
    return found


def adapted_kl(coefficient: float, observed: Observed, control: KlControlSpec) -> float:
    """beta · (1 + e · n / horizon), with e = clip(KL / target - 1, -.2, .2) and n samples (Ziegler et al. 2019, arXiv:1909.08593).

    Within the bounds of the spec's own coefficient, and never 0, from where it would not come back.
    """
    error = min(max(observed.kl / control.target - 1.0, -_MOST_ERROR), _MOST_ERROR)
    return min(max(coefficient * (1.0 + error * observed.samples / control.horizon), _LEAST_KL), _MOST_KL)


def adapted_entropy(coefficient: float, entropy: float, control: EntropyControlSpec) -> float:
    """The coefficient plus `delta` below the target and minus it above (Skywork-OR1, arXiv:2505.22312), within [0, max_coefficient]."""
    direction = (entropy < control.target) - (entropy > control.target)
    return min(max(coefficient + direction * control.delta, 0.0), control.max_coefficient)
