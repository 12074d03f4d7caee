"""The algorithm of a run."""

from __future__ import annotations

from gradbus.algorithms.algorithm import Algorithm
from gradbus.algorithms.given import GivenResponses
from gradbus.spec import RunSpec


def algorithm_of(spec: RunSpec) -> Algorithm:
    """The algorithm of a run of any kind."""
    if spec.trains_given:
        return GivenResponses(spec.algorithm, spec.rollout.max_new_tokens, kind=spec.kind)
    return Algorithm(spec.algorithm, spec.rollout.max_new_tokens, spec.teacher_weight)
