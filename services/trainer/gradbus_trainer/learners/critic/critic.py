"""The critic: a value head on hidden states, its optimiser, and the advantages of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from gradbus import crash_points
from gradbus.errors import ModelError
from gradbus.spec import CriticSpec, RunSpec
from gradbus_trainer.learners.base import CriticMetrics, StepMetrics
from gradbus_trainer.learners.critic.cut_off import apart, continued
from gradbus_trainer.learners.critic.gae import Floats
from gradbus_trainer.learners.critic.states import HiddenStates
from gradbus_trainer.learners.critic.trajectories import Trajectories
from gradbus_trainer.learners.gradient_step import check_gradient
from gradbus_trainer.learners.optimizer import AdamW
from gradbus_trainer.step.batch import Batch, TrainSample, by_sample
from gradbus_trainer.step.whitening import whitened
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

_PREFIX: Final = "critic."


class Critic:
    """V_t of each response token, read from the hidden state before it, and the optimiser of these values.

    Kind `head` reads the policy's hidden states and does not change them; `full` is a model of its own, a copy of the base model; `lora`
    trains adapters beside such a copy. The head is float32 and starts at the mean reward of the first batch. Frozen weights stay those of
    the base model and are no part of its state.
    Everything is a function of the spec, the base model and the batches.
    """

    def __init__(self, spec: RunSpec, settings: CriticSpec, states: HiddenStates) -> None:
        self._spec, self._settings = spec, settings
        self.states = states
        """Where values come from."""
        self._head = nn.Linear(states.width, 1, device=states.device, dtype=torch.float32)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        self._named = {**states.trained}
        self._named |= {f"value_head.{name}": parameter for name, parameter in self._head.named_parameters()}
        self._optimizer = AdamW(self._named, spec.trainer)

    @property
    def held(self) -> Sequence[Tensor]:
        """The critic's tensors on the device; the frozen ones may be the policy's too."""
        return [*self.states.held, *self._head.parameters(), *self._optimizer.tensors().values()]

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shapes of all that `tensors` gives after a first step."""
        moments = self._optimizer.shapes
        return {_PREFIX + name: shape for name, shape in chain(((n, t.shape) for n, t in self._named.items()), moments.items())}

    def train(self, batch: Batch, before: StepMetrics, train_policy: Callable[[Batch], StepMetrics]) -> StepMetrics:
        """The critic's updates, then the policy's by the advantages that the critic's values before them give.

        In the first `warmup_steps` the critic's alone, and the metrics are `before`.
        """
        try:
            estimates = self.estimate(batch)
            metrics, of_critic = before, estimates.metrics(self.gradient_norm(batch.step))
            self.update(batch, estimates)
        finally:
            self.forget_gradient()
        crash_points.reached("between-critic-and-policy")
        if batch.step >= self._settings.warmup_steps:
            metrics = train_policy(estimates.batch)
        return replace(metrics, tokens=sum(batch.trainable_counts), critic=of_critic)

    def tensors(self) -> LazyTensors:
        """Weights as `critic.<name>` with their moments; none before the first step."""
        moments = self._optimizer.tensors()
        state = LazyTensors.of(self._named) | moments if moments else moments
        return LazyTensors({_PREFIX + name: shape for name, shape in state.shapes.items()}, lambda name: state[name.removeprefix(_PREFIX)])

    def check(self, names: Iterable[str]) -> None:
        """Raises ModelError if tensors of these names, of `tensors` of another critic, are of another model."""
        given = {name.removeprefix(_PREFIX) for name in names}
        self._optimizer.check(given - self._named.keys())
        if not given and self._optimizer.tensors():
            raise ModelError("a critic that was trained cannot go back to a checkpoint before its first step; open the run's learner again")
        if given and not self._named.keys() <= given:
            raise ModelError("the checkpoint has no critic of this kind; resume from the run's own checkpoint")

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes what `tensors` of another critic gave, each once and in the order of `shapes`.

        Raises ModelError, with everything unchanged, if it is of another model.
        """
        self.check(tensors)
        if tensors:
            with torch.no_grad():
                for name, parameter in self._named.items():
                    parameter.copy_(tensors[_PREFIX + name])
        shapes = {name: shape for name, shape in self._optimizer.shapes.items() if tensors}
        self._optimizer.restore(LazyTensors(shapes, lambda name: tensors[_PREFIX + name]))

    def estimate(self, batch: Batch) -> Estimates:
        """The advantages of a step, and the gradient of the critic's first update, which `update` makes.

        The samples' `advantages` hold the sums of their rewards from each token on. Values, targets and the first gradient come from one
        forward pass, and so do the values after samples that were cut off.
        """
        if not self._optimizer.tensors():
            returns = [float(rows[0].advantages[0]) for rows in by_sample(batch.samples)]
            nn.init.constant_(self._head.bias, math.fsum(returns) / len(returns))
        values: list[Floats] = []
        advantages: list[Floats] = []
        targets: list[Floats] = []
        for samples in self.states.micro_batches(batch):
            found, ends = apart(self._values(continued(samples)), samples)
            of_rows = [row.detach().cpu().double().numpy() for row in found]
            part = Trajectories.of(samples, of_rows, [self._settings.gamma * end for end in ends])
            values += of_rows
            advantages += part.policy_advantages(self._settings)
            targets += part.targets(self._settings)
            torch.autograd.backward(self._loss(found, targets[-len(samples) :], None, batch))
        self.states.sum_gradients(self._named.values())
        of_all = [self.states.of_all_rows(batch, rows) for rows in (advantages, values, targets)]
        samples = [_with_advantages(sample, found) for sample, found in zip(batch.samples, of_all[0], strict=True)]
        return Estimates(Batch(batch.step, whitened(samples, self._spec.algorithm.whiten)), values, targets, *of_all[1:])

    def gradient_norm(self, step: int) -> float:
        """Clips the gradient; its norm before. Raises TrainingError if it is not finite."""
        return check_gradient(self._optimizer.clip_gradient(), step)

    def update(self, batch: Batch, before: Estimates) -> None:
        """The first update, whose gradient is there and clipped, and the others, each from a forward pass of its own.

        Raises TrainingError if a later gradient is not finite.
        """
        self._optimizer.step(self._settings.learning_rate)
        for _ in range(self._settings.updates - 1):
            self.forget_gradient()
            targets, olds = iter(before.targets), iter(before.values)
            for samples in self.states.micro_batches(batch):
                wanted, old = (list(islice(parts, len(samples))) for parts in (targets, olds))
                torch.autograd.backward(self._loss(self._values(samples), wanted, old, batch))
            self.states.sum_gradients(self._named.values())
            self.gradient_norm(batch.step)
            self._optimizer.step(self._settings.learning_rate)

    def forget_gradient(self) -> None:
        """Frees the gradients."""
        self._optimizer.forget_gradient()

    def _values(self, samples: Sequence[TrainSample]) -> Sequence[Tensor]:
        """V of each row's trainable tokens, float32 `[T]` each."""
        values: Tensor = self._head(self.states.hidden(samples).float()).squeeze(-1)
        parts = torch.split(values, [len(sample.token_ids) for sample in samples])
        masks = (torch.tensor(sample.trainable, device=values.device) for sample in samples)
        return [part[mask] for part, mask in zip(parts, masks, strict=True)]

    def _loss(self, values: Sequence[Tensor], targets: Sequence[Floats], olds: Sequence[Floats] | None, batch: Batch) -> Tensor:
        """Sum over tokens of ½ max((V - R)², (clipped V - R)²) / T, where V may move by `value_clip` from that of the first pass (PPO2)."""
        joined = torch.cat(list(values))
        wanted = _like(targets, joined)
        error = (joined - wanted).square()
        if olds is not None and self._settings.value_clip is not None:
            old, bound = _like(olds, joined), self._settings.value_clip
            error = torch.maximum(error, (old + (joined - old).clamp(-bound, bound) - wanted).square())
        return 0.5 * error.sum() / sum(batch.trainable_counts)


@dataclass(frozen=True, slots=True)
class Estimates:
    """What a critic says of a step before its updates; sequences are by row, float64 over its trainable tokens."""

    batch: Batch
    """With advantages in place of rewards."""
    values: Sequence[Floats]
    targets: Sequence[Floats]
    """Of the rows that this process computes."""
    all_values: Sequence[Floats]
    all_targets: Sequence[Floats]
    """Of all rows."""

    def metrics(self, norm: float) -> CriticMetrics:
        """How near the values are to the targets."""
        values, targets = np.concatenate(self.all_values), np.concatenate(self.all_targets)
        spread = float(targets.var())
        explained = 1.0 - float((targets - values).var()) / spread if spread > 0.0 else 1.0
        return CriticMetrics(loss=0.5 * float(np.square(targets - values).mean()), explained_variance=explained, grad_norm=norm)


def divided(tensors: Mapping[str, Tensor], critic: Critic | None) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """A checkpoint's moments of the policy, and what it has of the critic. Raises ModelError if `critic` cannot go on from that."""
    of_critic = {name: tensors[name] for name in tensors if critic is not None and name.startswith(_PREFIX)}
    moments = {name: tensors[name] for name in tensors if name not in of_critic}
    if critic is not None:
        if moments and not of_critic:
            raise ModelError("the checkpoint has a trained policy and no critic; resume from the run's own checkpoint")
        critic.check(of_critic)
    return moments, of_critic


def _with_advantages(sample: TrainSample, advantages: Floats) -> TrainSample:
    by_token = np.zeros(len(sample.token_ids), dtype=np.float32)
    by_token[sample.trainable] = advantages
    return replace(sample, advantages=by_token)


def _like(parts: Sequence[Floats], other: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(other)
