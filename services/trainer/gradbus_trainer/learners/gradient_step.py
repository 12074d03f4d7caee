"""One optimiser step while it is computed: its micro-batches, statistics and phases. All learners share it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import cached_property
from itertools import chain, islice
from typing import Final

import torch

from gradbus.errors import TrainingError
from gradbus.spec import RunSpec
from gradbus_kernels.operators import PolicyLoss, PolicyTokens
from gradbus_trainer.learners.base import LossMetrics, Phase, PhaseName, RatioMetrics, StepMetrics
from gradbus_trainer.learners.optimizer import learning_rate
from gradbus_trainer.step.batch import Batch

_MAX_PHASES = 64


def before_step(batch: Batch, reached: int, spec: RunSpec) -> StepMetrics:
    """Metrics of a step that has not changed anything (yet). Raises TrainingError for a step before `reached`."""
    if batch.step < reached:
        raise TrainingError(f"step {batch.step} is behind the learner's step {reached}; restore a checkpoint to go back")
    return StepMetrics(noop=True, learning_rate=learning_rate(batch.step, spec.schedule.steps, spec.trainer))


def check_gradient(norm: float, step: int) -> float:
    """The gradient's norm. Raises TrainingError if it is not finite."""
    if not math.isfinite(norm):
        raise TrainingError(f"the gradient of step {step} is not finite; lower trainer.learning_rate, or look at the step's samples")
    return norm


def mean_of_updates(updates: Sequence[StepMetrics], batch: Batch) -> StepMetrics:
    """Metrics of the step that trained `batch` from those of its updates, at least one."""
    tokens = sum(batch.trainable_counts)
    if len(updates) == 1:
        return replace(updates[0], tokens=tokens)
    ratios = RatioMetrics(*_means([astuple(update.ratio) for update in updates]))
    return replace(
        updates[0],
        tokens=tokens,
        updates=len(updates),
        grad_norm=math.fsum(update.grad_norm for update in updates) / len(updates),
        loss=replace(
            LossMetrics(*_means([astuple(update.loss) for update in updates])), kl_max=max(update.loss.kl_max for update in updates)
        ),
        ratio=replace(ratios, max=max(update.ratio.max for update in updates), step_kl=updates[-1].ratio.step_kl),
        phases=list(islice(chain.from_iterable(update.phases for update in updates), _MAX_PHASES)),
    )


def _means(rows: Sequence[tuple[float, ...]]) -> list[float]:
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


class StepStats:
    """Sums over the micro-batches of a step; their weights make these means over the step."""

    NAMES: Final = (
        "total",
        "policy",
        "kl",
        "entropy",
        "drift",
        "nll",
        "ratio_mean",
        "clipped_low",
        "clipped_high",
        "logprob_diff",
        "distance",
    )

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        self._kls: list[torch.Tensor] = []

    def add(self, loss: PolicyLoss, tokens: PolicyTokens) -> None:
        """Adds one micro-batch. Reads nothing back from a GPU, which would stop it between two micro-batches."""
        ratios, share = loss.ratios, tokens.entropy_weights  # a token without a share has the ratio 1
        values = {
            "total": loss.total.detach(),
            "policy": loss.policy,
            "kl": loss.kl,
            "entropy": loss.entropy,
            "drift": loss.drift,
            "nll": loss.nll,
            "ratio_mean": loss.ratio.mean,
            "clipped_low": loss.ratio.clipped_low,
            "clipped_high": loss.ratio.clipped_high,
            "logprob_diff": share.dot(ratios.log().abs()),
            "distance": loss.distance if loss.distance is not None else torch.zeros_like(loss.policy),
        }
        trained = share != 0.0
        largest = ratios.where(trained, 0.0).max()
        self._parts.append(torch.stack([*(values[name] for name in self.NAMES), largest, _largest_kl(loss, tokens, trained)]))
        if tokens.proximal_logprobs is not None:
            apart = torch.where(share != 0.0, loss.logprobs - tokens.proximal_logprobs, 0.0)
            self._kls.append(share.dot(apart.expm1() - apart))

    @cached_property
    def sums(self) -> torch.Tensor:
        """By NAMES, float64, on the CPU, once all micro-batches are added; the sums of several ranks are added up."""
        return self._read[:, : len(self.NAMES)].sum(0)

    @cached_property
    def largest(self) -> torch.Tensor:
        """Ratio and KL of a token, `[2]`, as `sums`; the largest of several ranks count."""
        return self._read[:, len(self.NAMES) :].amax(0)

    @cached_property
    def step_kl(self) -> torch.Tensor:
        """k3 of the policy before the step to this one, the mean of r - 1 - log r, r = pi / pi0 (Schulman 2020); 0 without the former.

        Float64 scalar, as `sums`.
        """
        return torch.stack(self._kls).cpu().double().sum() if self._kls else torch.zeros((), dtype=torch.float64)

    def loss_metrics(self) -> LossMetrics:
        """The means of the loss's terms."""
        mean = self._means()
        return LossMetrics(mean["total"], mean["policy"], mean["kl"], mean["entropy"], mean["drift"], mean["nll"], float(self.largest[1]))

    def ratio_metrics(self) -> RatioMetrics:
        """The means over the ratios, and the largest."""
        mean = self._means()
        return RatioMetrics(
            mean=mean["ratio_mean"],
            max=float(self.largest[0]),
            clipped_low=mean["clipped_low"],
            clipped_high=mean["clipped_high"],
            logprob_diff=mean["logprob_diff"],
            total_variation=mean["distance"],
            step_kl=float(self.step_kl),
        )

    @cached_property
    def _read(self) -> torch.Tensor:
        """All parts, `[parts, numbers]`; one of zeros if there are none."""
        none = torch.zeros(1, len(self.NAMES) + 2, dtype=torch.float64)
        return torch.stack(self._parts).cpu().double() if self._parts else none

    def _means(self) -> dict[str, float]:
        return dict(zip(self.NAMES, self.sums.tolist(), strict=True))


def _largest_kl(loss: PolicyLoss, tokens: PolicyTokens, trained: torch.Tensor) -> torch.Tensor:
    """k3 to the reference, r - 1 - log r with r = ref / pi, of the token where it is largest; 0 without a reference."""
    if tokens.reference_logprobs is None:
        return torch.zeros_like(loss.policy)
    apart = torch.where(trained, tokens.reference_logprobs - loss.logprobs, 0.0)
    return (apart.expm1() - apart).max().to(loss.policy.dtype)


class PhaseClock:
    """Records the phases of one step; of very many micro-batches only the first."""

    def __init__(self) -> None:
        self.recorded: list[Phase] = []

    @contextmanager
    def __call__(self, name: PhaseName) -> Iterator[None]:
        """Records the block."""
        began = time.time_ns()
        yield
        if len(self.recorded) < _MAX_PHASES or name == "optimise":
            self.recorded.append(Phase(name, began, time.time_ns()))


class GradientStep:
    """Accumulates gradients over micro-batches, then updates the weights."""

    def __init__(self) -> None:
        self.stats = StepStats()
        self._phase = PhaseClock()

    def accumulate(self, tokens: PolicyTokens, forward: Callable[[], PolicyLoss], backward: Callable[[torch.Tensor], object]) -> None:
        """One micro-batch: `backward` gets the total of the loss that `forward` computes."""
        with self._phase("forward"):
            loss = forward()
        with self._phase("backward"):
            backward(loss.total)
            self.stats.add(loss, tokens)

    def update(self, clip_and_step: Callable[[], float]) -> float:
        """The update; the gradient's norm before clipping."""
        with self._phase("optimise"):
            return clip_and_step()

    def metrics(self, batch: Batch, rate: float, norm: float) -> StepMetrics:
        """Metrics of the step that trained `batch`; with several ranks, reduce `stats` before."""
        return StepMetrics(
            noop=False,
            updates=1,
            learning_rate=rate,
            tokens=sum(batch.trainable_counts),
            grad_norm=norm,
            loss=self.stats.loss_metrics(),
            ratio=self.stats.ratio_metrics(),
            phases=self._phase.recorded,
        )
