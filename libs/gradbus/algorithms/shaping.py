"""Changes of rewards before the estimator sees them. They are in no report: a sample's reward stays the scorer's."""

from __future__ import annotations

from collections.abc import Sequence

from gradbus.spec import AlgorithmSpec


def overlong_shaped(rewards: Sequence[float], lengths: Sequence[int], most: int, spec: AlgorithmSpec) -> list[float]:
    """r_i - f · clamp((l_i - (L - B)) / B, 0, 1) (DAPO, arXiv:2503.14476, equation 13).

    f is `overlong_penalty`, L is `most`, the most response tokens, and B `overlong_buffer` · L. `rewards` and `lengths` are `[G]`.
    """
    buffer = spec.overlong_buffer * most
    return [
        reward - spec.overlong_penalty * min(max((length - (most - buffer)) / buffer, 0.0), 1.0)
        for reward, length in zip(rewards, lengths, strict=True)
    ]
