"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from gradbus.spec import TrainerSpec


def learning_rate(step: int, total_steps: int, trainer: TrainerSpec) -> float:
    """Rate of step `step` (from 0) of `total_steps`: a linear warm-up, then the schedule.

    Warm-up step s has (s + 1) / (warmup_steps + 1) of the peak, so that no step is wasted on a rate of 0. "linear" and
    "cosine" then fall from the peak and would reach 0 at `total_steps`.
    """
    peak, warmup = trainer.learning_rate, trainer.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if trainer.lr_schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if trainer.lr_schedule == "linear":
        return peak * (1.0 - progress)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
