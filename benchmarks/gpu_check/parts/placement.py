"""Part 9: trainer and engine share the device, side by side and in turns, and end in the weights of a run that shares nothing."""

from __future__ import annotations

from typing import Any, Final

from gpu_check.context import Context
from gpu_check.copying import CopyingTask, stack
from gradbus.client import Client, document

_STEPS: Final = 12


def run(context: Context) -> None:
    """The same run with every placement, in one stack."""
    task, steps = CopyingTask(context), 2 if context.dry else _STEPS
    digests = dict[str, str]()
    with stack(context.folder / "state") as client:
        for placement in ("separate", "shared", "timed"):
            trained = task.train(client, steps, rollout__placement=placement)
            context.holds(f"{placement}: the run has succeeded", trained.run["state"] == "succeeded")
            context.correct(f"{placement}: warnings and errors among its events", trained.warnings)
            digests[placement] = _last(client, trained.run)
            if placement == "timed":
                switches = sum(step["seconds"].get("switch", 0.0) for step in trained.steps)
                context.speed("timed: switches of a step", switches / steps, "s")
    for placement in ("shared", "timed"):
        context.holds(f"{placement}: the weights of the run that shares nothing", digests[placement] == digests["separate"] != "")


def _last(client: Client, run: dict[str, Any]) -> str:
    """The digest of the run's last version; empty without one."""
    versions = document(client.versions_page(run["id"]))["data"]
    return str(versions[-1]["digest"]) if versions else ""
