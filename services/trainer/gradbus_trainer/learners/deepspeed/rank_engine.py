"""One rank's part of a learner: what it trains, and the operations that all ranks do at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, cast

import torch

from gradbus.algorithms import Coefficients
from gradbus.errors import ModelError, TrainingError
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.critic import Critic
from gradbus_trainer.learners.deepspeed.rank_policy import RankPolicy
from gradbus_trainer.learners.deepspeed.rank_reward_model import RankRewardModel
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.learners.deepspeed.sharded.model import ShardedModel
from gradbus_trainer.learners.determinism import fix_order_of_sums
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

RAISED_BY_ALL: Final = (ModelError, TrainingError)
"""Errors that every rank raises at the same point: the ranks still agree on the state."""


class RankModel(Protocol):
    """What is trained, on one rank. All ranks call the same methods in the same order."""

    @property
    def model(self) -> ShardedModel:
        """In DeepSpeed's engine."""
        ...

    @property
    def critic(self) -> Critic | None:
        """The same on every rank."""
        ...

    def train(self, batch: Batch, before: StepMetrics, coefficients: Coefficients | None) -> StepMetrics:
        """This rank's share of one step; the metrics of all ranks together, with this rank's phases."""
        ...

    def probe(self) -> VersionProbe:
        """See `Learner`."""
        ...

    def idle_pass(self) -> None:
        """A pass whose gradient is 0."""
        ...


class RankEngine:
    """Every public method is called on all ranks, in the same order."""

    def __init__(self, folder: Path, spec: RunSpec, ranks: Ranks) -> None:
        """Raises ModelError on every rank if the model cannot be loaded on one of them."""
        torch.set_num_threads(spec.trainer.threads)
        fix_order_of_sums(ranks.device)
        self._ranks = ranks
        self._trained: RankModel = (RankRewardModel if spec.kind == "reward_model" else RankPolicy)(folder, spec, ranks)
        self._off_device: OffDevice | None = None

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shapes of the trained weights: all weights, or the adapters."""
        return self._trained.model.shapes

    @property
    def critic(self) -> Critic | None:
        """The same on every rank."""
        return self._trained.critic

    def train(self, batch: Batch, rate: float, coefficients: Coefficients | None = None) -> StepMetrics:
        """This rank's share of one step; the metrics of all ranks together, with this rank's phases.

        Raises TrainingError on every rank when a gradient is not finite, with everything as it was before the update.
        """
        return self._trained.train(batch, StepMetrics(noop=True, learning_rate=rate), coefficients)

    def of_critic(self, name: str) -> torch.Tensor:
        """A tensor of the critic. It is whole on every rank, so only one is asked."""
        return cast("Critic", self.critic).tensors()[name]

    def weight(self, name: str) -> torch.Tensor:
        """A trained weight, whole, float32."""
        return self._trained.model.weight(name)

    def moment(self, name: str, moment: str) -> torch.Tensor:
        """A moment of a trained weight, whole, float32. There are none before the first step."""
        return self._trained.model.moment(name, moment)

    def probe(self) -> VersionProbe:
        """See `Learner`; in the dtype of the forward pass."""
        return self._trained.probe()

    def restore(self, updates: int, source: Mapping[str, torch.Tensor], *, with_critic: bool = False) -> None:
        """Takes weights and moments from rank 0's `source`, one tensor at a time; no moments after 0 `updates`."""
        self._trained.model.restore(updates, source, self._trained.idle_pass)
        if self.critic is not None:
            shapes = self.critic.shapes if with_critic else {}
            self.critic.restore(LazyTensors(shapes, lambda name: self._ranks.of_first(source.get(name), shapes[name])))

    def release(self) -> None:
        """Moves everything that is held on the device to host memory."""
        critic = [] if self.critic is None else self.critic.held
        self._off_device = OffDevice([*self._trained.model.held, *critic])

    def resume(self) -> None:
        """Does nothing if nothing was released."""
        if self._off_device is not None:
            self._off_device.reload()
            self._off_device = None

    def close(self) -> None:
        """Frees the engine's memory."""
        self._trained.model.close()
