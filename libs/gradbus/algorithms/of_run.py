"""The algorithm of a run."""

from __future__ import annotations

from collections.abc import Sequence

from gradbus.algorithms.algorithm import Algorithm
from gradbus.algorithms.given import GivenResponses
from gradbus.spec import RunSpec


def metric_names_of(spec: RunSpec) -> Sequence[str]:
    """The metrics of the loss that a run's steps report."""
    names = algorithm_of(spec).metric_names
    return names if spec.trainer.inner.stop_kl is None else (*names, "step_kl")


def algorithm_of(spec: RunSpec) -> Algorithm:
    """The algorithm of a run of any kind."""
    if spec.trains_given:
        return GivenResponses(spec.algorithm, spec.rollout.max_new_tokens, kind=spec.kind)
    credits_turns = spec.environment is not None and spec.environment.credit == "turn"
    return Algorithm(spec.algorithm, spec.max_drawn_tokens, spec.teacher_weight, credits_turns)
