"""The copying task of the examples, trained by a whole stack on the device: what two parts need."""

from __future__ import annotations

import os
import runpy
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_check.context import Context
from gradbus.client import Client, document, load_spec
from gradbus.embedded import StackConfig, StateFolder
from gradbus.embedded.supervisor import start_detached

_EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "copy"


@dataclass(frozen=True, slots=True)
class Trained:
    """A run that is over."""

    run: dict[str, Any]
    events: list[dict[str, Any]]
    seconds: float
    """From its submission."""

    @property
    def warnings(self) -> int:
        """Events that are not mere information."""
        return sum(event["level"] != "info" for event in self.events)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The metrics of its steps."""
        return [event["data"] for event in self.events if event["type"] == "metrics"]


class CopyingTask:
    """The model, the data, and runs of them in a stack."""

    def __init__(self, context: Context) -> None:
        self._dry = context.dry
        os.environ["GRADBUS_DEVICE"] = context.device
        made = runpy.run_path(str(_EXAMPLE / "make_model.py"))
        self._base = made["make"](context.folder / "copy", made["Settings"](rows=200 if context.dry else 2000))

    def train(self, client: Client, steps: int, **changes: Any) -> Trained:
        """Submits a run over REST and waits for its end; `changes` are fields of its spec with `__` for a dot."""
        began = time.monotonic()
        submitted = document(
            client.submit(self._spec(steps, {name.replace("__", "."): value for name, value in changes.items()}), _EXAMPLE)
        )
        while (run := document(client.run(submitted["id"])))["finished_at"] is None:
            time.sleep(0.2)
        trained = Trained(run, list(map(document, client.events(run["id"]))), time.monotonic() - began)
        print(run["state"], run["reason"], *(event for event in trained.events if event["level"] != "info"), sep="\n")
        return trained

    def _spec(self, steps: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "model.path": self._base / "model",
            "data.train": self._base / "train.jsonl",
            "data.eval": self._base / "eval.jsonl",
            "schedule.steps": steps,
            "schedule.max_staleness": 0,  # the sampler's weights are the trainer's, so only rounding is between them
            "checkpoint.every": steps,
            "evaluation.every": steps,
        }
        if self._dry:
            settings |= {"schedule.groups_per_step": 4, "rollout.group_size": 4, "rollout.slots": 16, "evaluation.samples": 8}
        return load_spec(_EXAMPLE / "copy.toml", [f"{name}={value}" for name, value in (settings | dict(changes)).items()])


@contextmanager
def stack(state: Path) -> Iterator[Client]:
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
