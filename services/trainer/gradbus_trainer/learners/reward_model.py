"""The learner of reward models: a decoder with a scoring head, trained to rank the pairs of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from gradbus.algorithms import Coefficients
from gradbus.errors import TrainingError
from gradbus.memory.allocator import keep_freed_memory
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.causal_lm import load_weights
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_kernels.models.reward.model import RewardModel, load_reward_model
from gradbus_kernels.operators import RankingLoss, ranking_loss
from gradbus_trainer.learners.base import LossMetrics, Phase, PreferenceMetrics, StepMetrics
from gradbus_trainer.learners.determinism import fix_order_of_sums
from gradbus_trainer.learners.gradient_step import PhaseClock, before_step, check_gradient
from gradbus_trainer.learners.optimizer import AdamW
from gradbus_trainer.step.batch import Batch, TrainSample, micro_batches
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

NO_PROBE: Final = "a reward model has no log-probabilities to compare; no engine samples with its versions"


class RewardModelLearner:
    """AdamW on the ranking loss of a step's pairs, float32. Bits are fixed for a fixed number of threads (CPU) or kind of GPU.

    The loss needs both scores of each pair. If the step has several micro-batches, a pass without gradients gives them, and each
    micro-batch then adds its samples' part of the gradient.
    """

    def __init__(self, model_folder: Path, spec: RunSpec, device: str = "cpu") -> None:
        """Loads the model; sets the process's torch threads and its allocator to keep memory. Raises ModelError."""
        torch.set_num_threads(spec.trainer.threads)
        keep_freed_memory(sparing=spec.trainer.gradient_checkpointing)
        fix_order_of_sums(device)
        self._spec = spec
        self._center = spec.preference.center if spec.preference else 0.0
        self._step = 0
        self._model: RewardModel = load_reward_model(model_folder, torch.float32, device)
        self._model.model.checkpointing = spec.trainer.gradient_checkpointing
        self._named = dict(self._model.named_parameters())
        self._optimizer = AdamW(self._named, spec.trainer)
        self._off_device: OffDevice | None = None

    @property
    def trained_parameters(self) -> int:
        """See `Learner`."""
        return sum(parameter.numel() for parameter in self._named.values())

    def train(self, batch: Batch, coefficients: Coefficients | None = None) -> StepMetrics:  # noqa: ARG002 - it has none
        """See `Learner`. Of the batch the samples 2·b and 2·b + 1 are pair b."""
        metrics = before_step(batch, self._step, self._spec)
        if batch.samples:
            try:
                metrics = self._update(batch, metrics)
            finally:
                self._optimizer.forget_gradient()
        self._step = batch.step + 1
        return metrics

    def weights(self) -> LazyTensors:
        """See `Learner`."""
        return LazyTensors.of(self._named)

    def optimizer_tensors(self) -> LazyTensors:
        """See `Learner`."""
        return self._optimizer.tensors()

    def probe(self) -> VersionProbe:
        """See `Learner`. Raises TrainingError."""
        raise TrainingError(NO_PROBE)

    def restore(self, step: int, weights: Mapping[str, torch.Tensor], optimizer_tensors: Mapping[str, torch.Tensor]) -> None:
        """See `Learner`."""
        self._optimizer.check(optimizer_tensors)
        load_weights(self._named, weights)
        self._optimizer.restore(optimizer_tensors)
        self._step = step

    def release(self) -> None:
        """See `Learner`."""
        self._off_device = OffDevice([*self._model.parameters(), *self._model.buffers(), *self._optimizer.tensors().values()])

    def resume(self) -> None:
        """See `Learner`."""
        if self._off_device is not None:
            self._off_device.reload()
            self._off_device = None

    def _update(self, batch: Batch, before: StepMetrics) -> StepMetrics:
        phase = PhaseClock()
        parts = micro_batches(batch, self._spec.trainer.micro_batch_tokens)
        with phase("forward"):
            scores = self._scores(parts)
            loss, by_score = ranked(scores, self._center)
        with phase("backward"):
            if len(parts) == 1:
                torch.autograd.backward(scores, by_score)
            else:
                for samples, part in zip(parts, torch.split(by_score, [len(samples) for samples in parts]), strict=True):
                    torch.autograd.backward(self._model(samples), part)
        with phase("optimise"):
            norm = check_gradient(self._optimizer.clip_gradient(), batch.step)
            self._optimizer.step(before.learning_rate)
        return ranking_metrics(before, batch, loss, norm, phase.recorded)

    def _scores(self, parts: Sequence[Sequence[TrainSample]]) -> torch.Tensor:
        """The scores of all samples, float32 `[2 · B]`; with their graph only if one pass makes them all."""
        with torch.set_grad_enabled(len(parts) == 1):
            return torch.cat([self._model(samples) for samples in parts])


def ranked(scores: torch.Tensor, center: float) -> tuple[RankingLoss, torch.Tensor]:
    """The loss of the pairs with these scores, float32 `[2 · B]`, and its derivative by each of them."""
    apart = scores.detach().requires_grad_()
    loss = ranking_loss(apart, center)
    (by_score,) = torch.autograd.grad(loss.total, apart)
    return loss, by_score


def ranking_metrics(before: StepMetrics, batch: Batch, loss: RankingLoss, norm: float, phases: Sequence[Phase]) -> StepMetrics:
    """Metrics of the step that trained the pairs of `batch`; `norm` is that of its gradient."""
    chosen, rejected = float(loss.chosen), float(loss.rejected)
    return replace(
        before,
        noop=False,
        updates=1,
        tokens=sum(batch.trainable_counts),
        grad_norm=norm,
        loss=LossMetrics(total=float(loss.total.detach())),
        preference=PreferenceMetrics(float(loss.accuracy), chosen - rejected, chosen, rejected),
        phases=phases,
    )
