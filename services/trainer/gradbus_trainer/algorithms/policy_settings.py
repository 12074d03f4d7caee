"""From a run's algorithm to the settings of the loss."""

from __future__ import annotations

from gradbus.spec import AlgorithmSpec
from gradbus_kernels.operators import PolicySettings


def policy_settings(algorithm: AlgorithmSpec) -> PolicySettings:
    """NaN goes through: the learner looks at the gradient's norm, on all ranks at the same time."""
    low, high = algorithm.clip
    return PolicySettings(
        clip_low=low,
        clip_high=high,
        importance=algorithm.importance,
        kl=algorithm.kl,
        entropy=algorithm.entropy,
        allow_nan=True,
    )
