"""The critic: a value head on hidden states, its optimiser, and the advantages of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from gradbus.errors import ModelError
from gradbus.spec import CriticSpec, RunSpec
from gradbus_kernels.models.causal_lm import head_inputs
from gradbus_kernels.models.language_model import LanguageModel
from gradbus_trainer.learners.base import CriticMetrics
from gradbus_trainer.learners.critic.body import open_body
from gradbus_trainer.learners.critic.cut_off import apart, continued
from gradbus_trainer.learners.critic.gae import Floats
from gradbus_trainer.learners.critic.trajectories import Trajectories
from gradbus_trainer.learners.gradient_step import check_gradient
from gradbus_trainer.learners.optimizer import AdamW
from gradbus_trainer.step.batch import Batch, TrainSample, by_sample, micro_batches
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

    def __init__(self, folder: Path, spec: RunSpec, settings: CriticSpec, policy: LanguageModel) -> None:
        """Raises ModelError."""
        self._spec, self._settings = spec, settings
        self._trains_body = settings.kind != "head"
        self._body, body = open_body(folder, spec, settings, policy)
        self._head = nn.Linear(policy.head_weight.shape[1], 1, device=policy.device, dtype=torch.float32)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        self._named = {**body}
        self._named |= {f"value_head.{name}": parameter for name, parameter in self._head.named_parameters()}
        self._optimizer = AdamW(self._named, spec.trainer)

    @property
    def held(self) -> Sequence[Tensor]:
        """The critic's tensors on the device; the frozen ones may be the policy's too."""
        own = [*self._body.parameters(), *self._body.buffers()] if self._trains_body else []
        return [*own, *self._head.parameters(), *self._optimizer.tensors().values()]

    def warms_up(self, step: int) -> bool:
        """Whether the critic alone is trained in this step."""
        return step < self._settings.warmup_steps

    def tensors(self) -> LazyTensors:
        """Weights as `critic.<name>` with their moments; none before the first step."""
        moments = self._optimizer.tensors()
        state = LazyTensors.of(self._named) | moments if moments else moments
        return LazyTensors({_PREFIX + name: shape for name, shape in state.shapes.items()}, lambda name: state[name.removeprefix(_PREFIX)])

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes what `tensors` of another critic gave. Raises ModelError, with everything unchanged, if it is of another model."""
        given = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
        moments = {name: tensor for name, tensor in given.items() if name not in self._named}
        self._optimizer.check(moments)
        if not given and self._optimizer.tensors():
            raise ModelError("a critic that was trained cannot go back to a checkpoint before its first step; open the run's learner again")
        if given and not self._named.keys() <= given.keys():
            raise ModelError("the checkpoint has no critic of this kind; resume from the run's own checkpoint")
        with torch.no_grad():
            for name in self._named.keys() & given.keys():
                self._named[name].copy_(given[name])
        self._optimizer.restore(moments)

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
        for samples in self._micro_batches(batch):
            found, ends = apart(self._values(continued(samples)), samples)
            of_rows = [row.detach().cpu().double().numpy() for row in found]
            part = Trajectories.of(samples, of_rows, [self._settings.gamma * end for end in ends])
            values += of_rows
            advantages += part.policy_advantages(self._settings)
            targets += part.targets(self._settings)
            torch.autograd.backward(self._loss(found, targets[-len(samples) :], None, batch))
        samples = [_with_advantages(sample, found) for sample, found in zip(batch.samples, advantages, strict=True)]
        return Estimates(Batch(batch.step, whitened(samples, self._spec.algorithm.whiten)), values, targets)

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
            for samples in self._micro_batches(batch):
                wanted, old = (list(islice(parts, len(samples))) for parts in (targets, olds))
                torch.autograd.backward(self._loss(self._values(samples), wanted, old, batch))
            self.gradient_norm(batch.step)
            self._optimizer.step(self._settings.learning_rate)

    def forget_gradient(self) -> None:
        """Frees the gradients."""
        self._optimizer.forget_gradient()

    def _micro_batches(self, batch: Batch) -> Sequence[Sequence[TrainSample]]:
        return micro_batches(batch, self._spec.trainer.micro_batch_tokens, self._body.shares_prompts, whole_samples=True)

    def _values(self, samples: Sequence[TrainSample]) -> Sequence[Tensor]:
        """V of each row's trainable tokens, float32 `[T]` each."""
        with torch.set_grad_enabled(self._trains_body):
            hidden, _, _ = head_inputs(self._body, samples)
        values: Tensor = self._head(hidden.float()).squeeze(-1)
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

    def metrics(self, norm: float) -> CriticMetrics:
        """How near the values are to the targets."""
        values, targets = np.concatenate(self.values), np.concatenate(self.targets)
        spread = float(targets.var())
        explained = 1.0 - float((targets - values).var()) / spread if spread > 0.0 else 1.0
        return CriticMetrics(loss=0.5 * float(np.square(targets - values).mean()), explained_variance=explained, grad_norm=norm)


def belongs_to_critic(name: str) -> bool:
    """Whether a tensor of a checkpoint is the critic's."""
    return name.startswith(_PREFIX)


def _with_advantages(sample: TrainSample, advantages: Floats) -> TrainSample:
    by_token = np.zeros(len(sample.token_ids), dtype=np.float32)
    by_token[sample.trainable] = advantages
    return replace(sample, advantages=by_token)


def _like(parts: Sequence[Floats], other: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(other)
