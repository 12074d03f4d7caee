"""The seam between the trainer's fold and whatever moves the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from gradbus.errors import TrainingError
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_trainer.lazy_tensors import LazyTensors
from gradbus_trainer.learners.learning_rate import learning_rate
from gradbus_trainer.learners.phases import Phase
from gradbus_trainer.step.batch import Batch


@dataclass(frozen=True, slots=True)
class LossMetrics:
    """Parts of the step's loss; means over trainable tokens (`aggregate` decides how they are weighted)."""

    total: float = 0.0
    policy: float = 0.0
    kl: float = 0.0
    """k3 estimate to the base model, nats a token; 0 without a KL term."""
    entropy: float = 0.0
    """Nats a token."""


@dataclass(frozen=True, slots=True)
class RatioMetrics:
    """How far the trained policy is from the one that sampled; over trainable tokens."""

    mean: float = 1.0
    max: float = 1.0
    clipped_low: float = 0.0
    """Share of tokens below 1 - clip[0]."""
    clipped_high: float = 0.0
    """Share of tokens above 1 + clip[1]."""
    logprob_diff: float = 0.0
    """Mean absolute difference of log-probability between trainer and rollout, nats."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one step did."""

    noop: bool
    """True when the batch had no weight: nothing was changed."""
    learning_rate: float
    tokens: int = 0
    """Trainable tokens."""
    grad_norm: float = 0.0
    """Before clipping."""
    loss: LossMetrics = LossMetrics()
    ratio: RatioMetrics = RatioMetrics()
    phases: Sequence[Phase] = field(default=(), compare=False)
    """When it did what."""


def before_step(batch: Batch, reached: int, spec: RunSpec) -> StepMetrics:
    """Of a step that has done nothing yet, which is all of one without weight. Raises TrainingError for one before `reached`."""
    if batch.step < reached:
        raise TrainingError(f"step {batch.step} is behind the learner's step {reached}; restore a checkpoint to go back")
    return StepMetrics(noop=True, learning_rate=learning_rate(batch.step, spec.schedule.steps, spec.trainer))


class Learner(Protocol):
    """Holds weights and optimiser state, and moves them one step at a time. A function of its restored state and the batches.

    Its weights are what it trains: with `trainer.lora` the adapters alone, under peft's names.
    """

    @property
    def trained_parameters(self) -> int:
        """How many numbers a step moves."""
        ...

    def train(self, batch: Batch) -> StepMetrics:
        """One optimiser step; a batch without weight changes nothing and is told by `noop`.

        Raises TrainingError, with everything unchanged, when the gradient is not finite.
        """
        ...

    def weights(self) -> LazyTensors:
        """Under Hugging Face names, or peft's, as they are when each is asked for: float32, without a tied head."""
        ...

    def optimizer_tensors(self) -> LazyTensors:
        """The same by trained parameter: `<name>.exp_avg`, `<name>.exp_avg_sq`, `<name>.step`; none before the first step."""
        ...

    def probe(self) -> VersionProbe:
        """What its weights compute for a fixed text, with the adapters and without."""
        ...

    def restore(self, step: int, weights: Mapping[str, torch.Tensor], optimizer_tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the state that another learner gave out after `step` steps; going on from it gives the same bits.

        Raises ModelError when the tensors are not this model's.
        """
        ...
