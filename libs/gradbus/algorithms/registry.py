"""Selects the algorithm that a spec names, and answers what a run with it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gradbus.algorithms.base import Algorithm, GroupAdvantages, ScoredSample
from gradbus.algorithms.grpo import Grpo
from gradbus.errors import Fault
from gradbus.spec import AlgorithmSpec, RunSpec
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, Sample

ALGORITHMS: Final[Mapping[str, Callable[[AlgorithmSpec], Algorithm]]] = {"grpo": Grpo}
"""By `algorithm.name` of the spec. To add one: its module beside `grpo.py`, a line here, its name in `AlgorithmSpec`."""


def algorithm_of(spec: AlgorithmSpec) -> Algorithm:
    """The algorithm of a spec's section."""
    return ALGORITHMS[spec.name](spec)


def group_advantages(algorithm: Algorithm, samples: Sequence[Sample], rewards: Mapping[str, ScoredSample]) -> GroupAdvantages:
    """The verdict and the advantages of a group with these samples; `rewards` is by sample id. Raises KeyError if one has no reward."""
    truncated = [sample.finish_reason == FINISH_REASON_LENGTH for sample in samples]
    return algorithm.compute_advantages([rewards[sample.sample_id] for sample in samples], truncated)


def algorithm_faults(spec: RunSpec) -> list[Fault]:
    """Faults of a spec whose algorithm needs what no learner or no group of the run has."""
    needs, name = algorithm_of(spec.algorithm).needs, spec.algorithm.name
    faults: list[Fault] = []
    if needs.values:
        able = [other for other in ALGORITHMS if not algorithm_of(spec.algorithm.model_copy(update={"name": other})).needs.values]
        allowed = ", ".join(able) or "an algorithm without a critic"
        faults.append(Fault("algorithm.name", "needs a critic's values, which no learner computes", name, allowed))
    if needs.valid_samples > spec.rollout.group_size:
        message = f"{name} trains a group from {needs.valid_samples} valid samples on; smaller groups are never trained"
        faults.append(Fault("rollout.group_size", message, str(spec.rollout.group_size), f"at least {needs.valid_samples}"))
    return faults


def learner_computes_reference(spec: RunSpec) -> bool:
    """Whether the learner computes the reference log-probabilities: its model without the adapters is the base model."""
    return algorithm_of(spec.algorithm).needs.reference and spec.trainer.lora is not None


def needs_reference_service(spec: RunSpec) -> bool:
    """Whether the conductor asks the reference service for the base model's log-probabilities of each trained group."""
    return algorithm_of(spec.algorithm).needs.reference and spec.trainer.lora is None
