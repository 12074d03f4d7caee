"""Selects the algorithm that a spec names, and answers what a run with it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gradbus.algorithms.base import Algorithm
from gradbus.algorithms.grpo import Grpo
from gradbus.spec import AlgorithmSpec, RunSpec

ALGORITHMS: Final[Mapping[str, Callable[[AlgorithmSpec], Algorithm]]] = {"grpo": Grpo}
"""By `algorithm.name` of the spec. To add one: its module beside `grpo.py`, a line here, its name in `AlgorithmSpec`."""


def algorithm_of(spec: AlgorithmSpec) -> Algorithm:
    """The algorithm of a spec's section."""
    return ALGORITHMS[spec.name](spec)


def learner_computes_reference(spec: RunSpec) -> bool:
    """Whether the learner computes the reference log-probabilities: its model without the adapters is the base model."""
    return algorithm_of(spec.algorithm).needs.reference and spec.trainer.lora is not None


def needs_reference_service(spec: RunSpec) -> bool:
    """Whether the conductor asks the reference service for the base model's log-probabilities of each trained group."""
    return algorithm_of(spec.algorithm).needs.reference and spec.trainer.lora is None
