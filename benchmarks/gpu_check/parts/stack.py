"""Part 8: the whole stack, with trainer and rollout worker on the device, trains the copying task of the examples for some steps."""

from __future__ import annotations

import os
import runpy
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gpu_check.context import Context
from gradbus.client import Client, load_spec
from gradbus.embedded import StackConfig, StateFolder
from gradbus.embedded.supervisor import start_detached

_EXAMPLE: Final = Path(__file__).resolve().parents[3] / "examples" / "copy"
_STEPS: Final = 150
_RISE: Final = 0.1
"""Least rise of the mean reward from the first tenth of the steps to the last; on a CPU it is 0.23."""


def run(context: Context) -> None:
    """Submits the run over REST and waits for its end."""
    os.environ["GRADBUS_DEVICE"] = context.device
    made = runpy.run_path(str(_EXAMPLE / "make_model.py"))
    base = made["make"](context.folder / "copy", made["Settings"](rows=200 if context.dry else 2000))
    began = time.monotonic()
    with _stack(context.folder / "state") as client:
        context.speed("start of the stack", time.monotonic() - began, "s")
        began = time.monotonic()
        submitted = client.submit(_spec(base, context.dry), _EXAMPLE)
        while (run := client.run(submitted["id"]))["finished_at"] is None:
            time.sleep(0.2)
        seconds, events = time.monotonic() - began, list(client.all_events(run["id"]))
        print(run["state"], run["reason"], *(event for event in events if event["level"] != "info"), sep="\n")
    _judge(context, run, events)
    context.speed("steps, checkpoints and start of the run included", run["progress"]["step"] / seconds, "steps/s")


def _judge(context: Context, run: dict[str, Any], events: list[dict[str, Any]]) -> None:
    context.holds("the run has succeeded", run["state"] == "succeeded")
    context.correct("warnings and errors among its events", sum(event["level"] != "info" for event in events))
    steps = [event["data"] for event in events if event["type"] == "metrics"]
    context.holds("every step has its metrics", bool(steps) and len(steps) == run["progress"]["step"])
    apart = max((step["logprob_diff"] for step in steps), default=0.0)
    context.correct("mean difference of log-probability between trainer and rollout, largest step", apart, 1e-4, "nats")
    if context.dry or not steps:
        return
    rewards = [step["reward"] for step in steps]
    tenth = max(1, len(rewards) // 10)
    rise = statistics.fmean(rewards[-tenth:]) - statistics.fmean(rewards[:tenth])
    context.correct("rise of the mean reward that is missing", _RISE - rise)


def _spec(base: Path, dry: bool) -> dict[str, Any]:
    steps = 3 if dry else _STEPS
    changes: dict[str, Any] = {
        "model.path": base / "model",
        "data.train": base / "train.jsonl",
        "data.eval": base / "eval.jsonl",
        "schedule.steps": steps,
        "schedule.max_staleness": 0,  # the sampler's weights are the trainer's, so only rounding is between them
        "checkpoint.every": steps,
        "evaluation.every": steps,
    }
    if dry:
        changes |= {"schedule.groups_per_step": 4, "rollout.group_size": 4, "rollout.slots": 16, "evaluation.samples": 8}
    return load_spec(_EXAMPLE / "copy.toml", [f"{name}={value}" for name, value in changes.items()])


@contextmanager
def _stack(state: Path) -> Iterator[Client]:
    """A stack of its own inside the block, and its client."""
    folder = StateFolder(state)
    try:
        start_detached(StackConfig(state, port=0))
        with Client.discover(state) as client:
            yield client
    except BaseException:
        for name in ("trainer-0", "rollout-0", "conductor"):
            print(name, folder.log_tail(name), sep="\n")
        raise
    finally:
        if owner := folder.owner():
            os.kill(owner, signal.SIGTERM)
        while folder.owner():
            time.sleep(0.1)
