"""Weights & Biases: a run of a project, with the id of the run; WANDB_MODE decides whether it is sent, or written for `wandb sync`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gradbus.trackers.lock import lock_for
from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun, writing_to

PROJECT: Final = "gradbus"
_AXES: Final = {"train": "train/step", "eval": "eval/version"}


class WandbSink:
    """W&B's own step is the event, which its server takes only if it is larger than the last one. Offline, where no server says which
    that is, the folder is written anew from the beginning.
    """

    def __init__(self, target: str, run: TrackedRun) -> None:
        import wandb  # noqa: PLC0415 - an extra, and slow to load

        offline = os.environ.get("WANDB_MODE") == "offline"
        folder = Path(os.environ.get("WANDB_DIR", "."))
        self._lock = lock_for(f"wandb {target or PROJECT} {folder.resolve() if offline else ''}", run.run_id)
        if offline:
            for earlier in (folder / "wandb").glob(f"offline-run-*-{run.run_id}"):
                shutil.rmtree(earlier)
        self._run = wandb.init(
            project=target or PROJECT,
            id=run.run_id,
            name=run.title,
            config=dict(run.spec),
            dir=folder,
            resume=None if offline else "allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True),
        )
        self.written = max(0, self._run.step - 1) if self._run.resumed else 0
        for group, axis in _AXES.items():
            self._run.define_metric(f"{group}/*", step_metric=axis)

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        with writing_to("W&B"):
            for point in points:
                self._run.log({**point.values, _AXES[point.group]: point.step}, step=int(point.values[EVENT]))

    def close(self, state: str) -> None:
        """See `Sink.close`. W&B shows a run that goes on as finished, until it is fed again."""
        with writing_to("W&B"):
            self._run.finish(exit_code=1 if state == "failed" else 0)
        self._lock.close()
