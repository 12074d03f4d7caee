"""The learner on rank 0: every method is a command that all ranks carry out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import torch

from gradbus.algorithms import Coefficients
from gradbus.errors import ModelError
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.causal_lm import check_shapes
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.critic import divided
from gradbus_trainer.learners.deepspeed.commands import Command, batch_tensors
from gradbus_trainer.learners.deepspeed.leader import Leader
from gradbus_trainer.learners.deepspeed.sharded.model import MOMENTS
from gradbus_trainer.learners.gradient_step import before_step
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

_Result = TypeVar("_Result")


class DeepSpeedLearner:
    """AdamW under ZeRO. Bits are fixed for a fixed number of ranks and threads (CPU)."""

    def __init__(self, folder: Path, spec: RunSpec, leader: Leader) -> None:
        """Opens an engine on every rank. Raises ModelError; like every method, RankLostError."""
        self._spec = spec
        self._leader = leader
        self._step = 0
        self._updates = 0
        self._engine = leader.open(folder, spec)

    @property
    def trained_parameters(self) -> int:
        """See `Learner`."""
        return sum(shape.numel() for shape in self._engine.shapes.values())

    def train(self, batch: Batch, coefficients: Coefficients | None = None) -> StepMetrics:
        """See `Learner`. Each rank takes rows of about as many tokens; the loss is divided by the whole step's counts."""
        metrics = before_step(batch, self._step, self._spec)
        if batch.has_weight:
            metrics = self._optimise(batch, metrics.learning_rate, coefficients)
        self._step = batch.step + 1
        return metrics

    def weights(self) -> LazyTensors:
        """See `Learner`. Each tensor is gathered from the ranks when it is asked for."""
        return LazyTensors(self._engine.shapes, self._weight)

    def optimizer_tensors(self) -> LazyTensors:
        """See `Learner`. Each tensor is gathered from the ranks when it is asked for."""
        shapes = self._engine.shapes if self._updates else {}
        moments = LazyTensors({f"{name}.{moment}": shape for name, shape in shapes.items() for moment in MOMENTS}, self._moment)
        steps = LazyTensors({f"{name}.step": torch.Size() for name in shapes}, lambda _: torch.tensor(float(self._updates)))
        of_critic = {} if self._engine.critic is None else self._engine.critic.tensors().shapes
        return moments | steps | LazyTensors(of_critic, self._of_critic)

    def probe(self) -> VersionProbe:
        """See `Learner`."""
        return self._lead(Command("probe"), self._engine.probe)

    def restore(self, step: int, weights: Mapping[str, torch.Tensor], optimizer_tensors: Mapping[str, torch.Tensor]) -> None:
        """See `Learner`."""
        shapes = self._engine.shapes
        check_shapes(shapes, weights)
        moments, of_critic = divided(optimizer_tensors, self._engine.critic)
        if moments and moments.keys() != {f"{name}.{moment}" for name in shapes for moment in (*MOMENTS, "step")}:
            raise ModelError("the optimiser state is of another model; resume from the run's own checkpoint")
        updates = next((int(tensor) for name, tensor in moments.items() if name.endswith(".step")), 0)
        source, with_critic = {**weights, **moments, **of_critic}, bool(of_critic)
        command = Command("restore", {"updates": updates, "critic": with_critic})
        self._lead(command, lambda: self._engine.restore(updates, source, with_critic=with_critic))
        self._step, self._updates = step, updates

    def release(self) -> None:
        """See `Learner`. Only for one rank: devices are shared by two processes."""
        self._lead(Command("rest"), self._engine.release)

    def resume(self) -> None:
        """See `Learner`."""
        self._lead(Command("rest"), self._engine.resume)

    def _optimise(self, batch: Batch, rate: float, coefficients: Coefficients | None) -> StepMetrics:
        tensors = batch_tensors(batch) if self._leader.ranks.size > 1 else {}
        sent = None if coefficients is None else asdict(coefficients)
        command = Command("train", {"step": batch.step, "rate": rate, "coefficients": sent}, tensors)
        metrics = self._lead(command, lambda: self._engine.train(batch, rate, coefficients))
        self._updates += metrics.updates
        return metrics

    def _weight(self, name: str) -> torch.Tensor:
        return self._lead(Command("weight", {"name": name}), lambda: self._engine.weight(name))

    def _moment(self, key: str) -> torch.Tensor:
        name, _, moment = key.rpartition(".")
        return self._lead(Command("moment", {"name": name, "moment": moment}), lambda: self._engine.moment(name, moment))

    def _of_critic(self, name: str) -> torch.Tensor:
        """Which each rank has whole."""
        return self._lead(Command("rest"), lambda: self._engine.of_critic(name))

    def _lead(self, command: Command, work: Callable[[], _Result]) -> _Result:
        return self._leader.lead(self._engine, command, work)
