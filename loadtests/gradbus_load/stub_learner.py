"""A learner without a model: a step takes a calibrated time and changes every weight.

So every version differs from the version before, and is published, attested and checkpointed like any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from gradbus.algorithms import Coefficients
from gradbus.errors import ModelError, SettingsError
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.causal_lm import load_causal_lm, load_weights
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_load.calibration import LearnerTiming
from gradbus_trainer.learners.base import LossMetrics, StepMetrics
from gradbus_trainer.learners.gradient_step import before_step, check_gradient
from gradbus_trainer.learners.optimizer import AdamW
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.tensors.lazy_tensors import LazyTensors


class StubLearner:
    """`Learner` whose gradient is a fixed direction, scaled by the batch; deterministic in its state and the batches."""

    def __init__(self, model_folder: Path, spec: RunSpec, timing: LearnerTiming | None = None) -> None:
        """Loads the model's weights. Raises ModelError, and SettingsError for a run that trains adapters."""
        if spec.trainer.lora is not None:
            raise SettingsError("the stub learner trains whole weights; leave trainer.lora out of the spec")
        torch.set_num_threads(1)
        self._spec = spec
        self._timing = timing or LearnerTiming()
        self._step = 0
        self._model = load_causal_lm(model_folder)
        self._named = dict(self._model.named_parameters())
        self._optimizer = AdamW(self._named, spec.trainer)
        self._off_device: OffDevice | None = None
        draw = torch.Generator().manual_seed(spec.seed)
        self._direction = {name: torch.rand(weight.shape, generator=draw) + 0.5 for name, weight in self._named.items()}

    @property
    def trained_parameters(self) -> int:
        """See `Learner`."""
        return sum(parameter.numel() for parameter in self._named.values())

    def train(self, batch: Batch, coefficients: Coefficients | None = None) -> StepMetrics:  # noqa: ARG002 - it has no loss that reads them
        """See `Learner`. Returns when the calibrated time is over."""
        began = time.monotonic()
        metrics = before_step(batch, self._step, self._spec)
        if batch.has_weight:
            metrics = self._update(batch, metrics.learning_rate)
        self._step = batch.step + 1
        time.sleep(max(0.0, began + self._timing.step_seconds - time.monotonic()))
        return metrics

    def weights(self) -> LazyTensors:
        """See `Learner`."""
        return LazyTensors.of(self._named)

    def optimizer_tensors(self) -> LazyTensors:
        """See `Learner`."""
        return self._optimizer.tensors()

    def probe(self) -> VersionProbe:
        """See `Learner`; used only by runs with adapters on a server."""
        raise ModelError("the stub learner computes no log-probabilities; use the torch engine's spec")

    def restore(self, step: int, weights: Mapping[str, torch.Tensor], optimizer_tensors: Mapping[str, torch.Tensor]) -> None:
        """See `Learner`."""
        self._optimizer.check(optimizer_tensors)
        load_weights(self._named, weights)
        self._optimizer.restore(optimizer_tensors)
        self._step = step

    def release(self) -> None:
        """See `Learner`."""
        self._off_device = OffDevice([*self._named.values(), *self._optimizer.tensors().values()])

    def resume(self) -> None:
        """See `Learner`."""
        if self._off_device is not None:
            self._off_device.reload()
            self._off_device = None

    def _update(self, batch: Batch, rate: float) -> StepMetrics:
        counts = batch.trainable_counts
        advantages = (float(sample.advantages.sum(dtype=np.float64, where=sample.trainable)) for sample in batch.samples)
        scale = check_gradient(math.fsum(counts) + math.fsum(advantages), batch.step)
        for name, parameter in self._named.items():
            parameter.grad = self._direction[name] * (scale or 1.0)
        norm = float(clip_grad_norm_(self._named.values(), self._spec.trainer.max_grad_norm))
        self._optimizer.step(rate)
        self._model.zero_grad()
        return StepMetrics(noop=False, learning_rate=rate, tokens=sum(counts), grad_norm=norm, loss=LossMetrics(policy=-scale))
