"""The interface between the train loop and the learner that computes a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch

from gradbus.algorithms import Coefficients
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

PhaseName = Literal["forward", "backward", "optimise"]


class Phase(NamedTuple):
    """A part of a step, in nanoseconds since 1970. A GPU works on after the call that began the work has returned."""

    name: PhaseName
    began: int
    ended: int


@dataclass(frozen=True, slots=True)
class LossMetrics:
    """Terms of the step's loss; means over trainable tokens (`aggregate` decides their weights)."""

    total: float = 0.0
    policy: float = 0.0
    kl: float = 0.0
    """Of the trained policy to the base model, by `kl_estimator`, nats a token; with a KL in the reward the mean of log mu - log ref;
    of labelled responses the loss's reference point, nats a response; 0 without a KL."""
    entropy: float = 0.0
    """Nats a token."""
    drift: float = 0.0
    """Of (log pi / mu)²; 0 without a coefficient."""
    nll: float = 0.0
    """-log pi, mean over the tokens of the best samples, nats; 0 without a coefficient."""
    kl_max: float = 0.0
    """KL to the reference by k3 of the token where it is largest, nats; 0 without a reference."""


@dataclass(frozen=True, slots=True)
class RatioMetrics:
    """Ratios of the trained policy to the policy that sampled; over trainable tokens."""

    mean: float = 1.0
    max: float = 1.0
    clipped_low: float = 0.0
    """Share of tokens that the trust region bounds below."""
    clipped_high: float = 0.0
    """Share of tokens that it bounds above."""
    logprob_diff: float = 0.0
    """Mean absolute difference of log-probability between trainer and rollout, nats."""
    outliers: float = 0.0
    """Share of tokens that the bound of the second moment dropped."""
    covariance_clipped: float = 0.0
    """Share of tokens that the clip of covariances left out."""
    total_variation: float = 0.0
    """Between the policy that sampled and the trained one, half the sum of absolute differences of probabilities; 0 without rows."""
    step_kl: float = 0.0
    """KL of the policy before the step to the one that its last update began with, nats a token; 0 if the step does not read the former."""


@dataclass(frozen=True, slots=True)
class CriticMetrics:
    """How near a critic's values are to their targets, before its updates; over trainable tokens."""

    loss: float = 0.0
    """Half the mean square of value minus target."""
    explained_variance: float = 0.0
    """1 - Var(target - value) / Var(target); 1 if the targets are equal."""
    grad_norm: float = 0.0
    """Of its first update, before clipping."""


@dataclass(frozen=True, slots=True)
class PreferenceMetrics:
    """How the policy ranks the pairs of a step, or its desirable and undesirable responses, before its update; means over them."""

    accuracy: float | None = None
    """Share of pairs whose chosen response has the higher reward; None without pairs."""
    margin: float | None = None
    """Of the rewards: beta times what the loss compares, or of a reward model's scores. None in a step with one label alone."""
    chosen: float | None = None
    """Log-probability of the chosen response, nats, or its score by a reward model; of a desirable response its log-ratio to the base
    model. None in a step without one."""
    rejected: float | None = None
    """The same of the rejected or undesirable response."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one step; of several updates of the policy their means, and their largest ratio."""

    noop: bool
    """True when the policy did not change: the batch had no weight, or only the critic was trained."""
    learning_rate: float
    tokens: int = 0
    """Trainable tokens."""
    updates: int = 0
    """Of the policy."""
    grad_norm: float = 0.0
    """Before clipping."""
    loss: LossMetrics = LossMetrics()
    ratio: RatioMetrics = RatioMetrics()
    critic: CriticMetrics | None = None
    """None in a step that trained no critic."""
    preference: PreferenceMetrics | None = None
    """None in a step that trained neither pairs nor labelled responses."""
    coefficients: Coefficients | None = None
    """Those of the step; None without a controller."""
    teacher_kl: float | None = None
    """Of the policy that sampled to the teacher: the mean of log mu - log pi_T, nats a token; None without a teacher."""
    phases: Sequence[Phase] = field(default=(), compare=False)
    """The step's parts in time."""

    def named(self) -> dict[str, float | None]:
        """Every metric that an algorithm may list in its `metric_names`."""
        critic, preference = self.critic or CriticMetrics(), self.preference or PreferenceMetrics()
        coefficients = self.coefficients or Coefficients(0.0, 0.0)
        return {
            "policy_loss": self.loss.policy,
            "kl": self.loss.kl,
            "kl_max": self.loss.kl_max,
            "entropy": self.loss.entropy,
            "drift": self.loss.drift,
            "nll": self.loss.nll,
            "ratio_mean": self.ratio.mean,
            "ratio_max": self.ratio.max,
            "logprob_diff": self.ratio.logprob_diff,
            "clip_low": self.ratio.clipped_low,
            "clip_high": self.ratio.clipped_high,
            "outliers": self.ratio.outliers,
            "covariance_clipped": self.ratio.covariance_clipped,
            "total_variation": self.ratio.total_variation,
            "step_kl": self.ratio.step_kl,
            "kl_coefficient": coefficients.kl,
            "entropy_coefficient": coefficients.entropy,
            "teacher_kl": self.teacher_kl or 0.0,
            "value_loss": critic.loss,
            "explained_variance": critic.explained_variance,
            "critic_grad_norm": critic.grad_norm,
            "accuracy": preference.accuracy,
            "margin": preference.margin,
            "chosen_logprob": preference.chosen,
            "rejected_logprob": preference.rejected,
            "chosen_score": preference.chosen,
            "rejected_score": preference.rejected,
            "desirable_logratio": preference.chosen,
            "undesirable_logratio": preference.rejected,
        }


class Learner(Protocol):
    """Holds weights and optimiser state and updates them step by step, as a function of the restored state and the batches alone.

    Its weights are those it trains: with `trainer.lora` the adapters alone, under peft's names.
    """

    @property
    def trained_parameters(self) -> int:
        """Number of trainable parameters."""
        ...

    def train(self, batch: Batch, coefficients: Coefficients | None = None) -> StepMetrics:
        """The updates of one step; a batch without weight changes nothing and sets `noop`.

        `coefficients` are the step's, in a run with controllers; in others the spec's count.

        Raises TrainingError when a gradient is not finite, with everything as it was before the update.
        """
        ...

    def weights(self) -> LazyTensors:
        """The trained weights under Hugging Face or peft names: float32, read when each is asked for, without a tied head."""
        ...

    def optimizer_tensors(self) -> LazyTensors:
        """The moments by trained parameter: `<name>.exp_avg`, `<name>.exp_avg_sq`, `<name>.step`; none before the first step.

        With a critic also its weights and their moments, as `critic.<name>`.
        """
        ...

    def probe(self) -> VersionProbe:
        """Log-probabilities of a fixed text under its weights, with the adapters and without; a server that serves them must agree."""
        ...

    def restore(self, step: int, weights: Mapping[str, torch.Tensor], optimizer_tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the state of another learner after `step` steps; the steps from there on give the same bits.

        Raises ModelError when the tensors belong to another model.
        """
        ...

    def release(self) -> None:
        """Moves its state to host memory and frees the device's memory, between two steps. Only `resume` may be called next."""
        ...

    def resume(self) -> None:
        """Takes the device's memory again, and its state with the same bits; does nothing if it was not released."""
        ...
