"""Part 8: the whole stack, with trainer and rollout worker on the device, trains the copying task of the examples for some steps."""

from __future__ import annotations

import statistics
import time
from typing import Final

from gpu_check.context import Context
from gpu_check.copying import CopyingTask, Trained, stack

_STEPS: Final = 150
_RISE: Final = 0.1
"""Least rise of the mean reward from the first tenth of the steps to the last; on a CPU it is 0.23."""


def run(context: Context) -> None:
    """Submits the run over REST and waits for its end."""
    task, began = CopyingTask(context), time.monotonic()
    with stack(context.folder / "state") as client:
        context.speed("start of the stack", time.monotonic() - began, "s")
        trained = task.train(client, 3 if context.dry else _STEPS)
    _judge(context, trained)
    context.speed("steps, checkpoints and start of the run included", trained.run["progress"]["step"] / trained.seconds, "steps/s")


def _judge(context: Context, trained: Trained) -> None:
    context.holds("the run has succeeded", trained.run["state"] == "succeeded")
    context.correct("warnings and errors among its events", trained.warnings)
    steps = trained.steps
    context.holds("every step has its metrics", bool(steps) and len(steps) == trained.run["progress"]["step"])
    apart = max((step["logprob_diff"] for step in steps), default=0.0)
    context.correct("mean difference of log-probability between trainer and rollout, largest step", apart, 1e-4, "nats")
    if context.dry or not steps:
        return
    rewards = [step["reward"] for step in steps]
    tenth = max(1, len(rewards) // 10)
    rise = statistics.fmean(rewards[-tenth:]) - statistics.fmean(rewards[:tenth])
    context.correct("rise of the mean reward that is missing", _RISE - rise)
