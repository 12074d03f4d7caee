"""The training algorithms, without tensors: the conductor, the gateway and the trainer ask the same code."""

from gradbus.algorithms.base import MAX_REWARD, Algorithm, GroupAdvantages, LossSettings, Needs, ScoredSample
from gradbus.algorithms.registry import (
    ALGORITHMS,
    algorithm_faults,
    algorithm_of,
    group_advantages,
    learner_computes_reference,
    needs_reference_service,
)

__all__ = [
    "ALGORITHMS",
    "MAX_REWARD",
    "Algorithm",
    "GroupAdvantages",
    "LossSettings",
    "Needs",
    "ScoredSample",
    "algorithm_faults",
    "algorithm_of",
    "group_advantages",
    "learner_computes_reference",
    "needs_reference_service",
]
