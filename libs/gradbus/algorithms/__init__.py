"""The training algorithms, without tensors: the conductor, the gateway and the trainer ask the same code."""

from gradbus.algorithms.algorithm import Algorithm
from gradbus.algorithms.base import MAX_REWARD, SHADOW, UNMARKED, GroupAdvantages, SampleMarks, ScoredSample
from gradbus.algorithms.controllers import Coefficients, ControllerState, Observed, after_step, step_coefficients
from gradbus.algorithms.estimators import ESTIMATORS
from gradbus.algorithms.held_out import held_out_loss
from gradbus.algorithms.needs import learner_computes_reference, need_faults, needs_reference_logprobs, needs_reference_service
from gradbus.algorithms.of_run import algorithm_of, metric_names_of
from gradbus.algorithms.sequences import joined, numbered_sequences, sequences

__all__ = [
    "ESTIMATORS",
    "MAX_REWARD",
    "SHADOW",
    "UNMARKED",
    "Algorithm",
    "Coefficients",
    "ControllerState",
    "GroupAdvantages",
    "Observed",
    "SampleMarks",
    "ScoredSample",
    "after_step",
    "algorithm_of",
    "held_out_loss",
    "joined",
    "learner_computes_reference",
    "metric_names_of",
    "need_faults",
    "needs_reference_logprobs",
    "needs_reference_service",
    "numbered_sequences",
    "sequences",
    "step_coefficients",
]
