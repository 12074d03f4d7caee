"""The trackers by name, each of an extra that may not be installed."""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple

from gradbus.errors import TrackerError, first_line
from gradbus.nearest import nearest_name
from gradbus.trackers.sink import Sink, TrackedRun


class Tracker(NamedTuple):
    """How a tracker is opened."""

    module: str
    sink: str
    extra: str
    form: str
    """What `--to` says."""
    needs_target: bool = False


TRACKERS: Final = {
    "tensorboard": Tracker("gradbus.trackers.tensorboard", "TensorBoardSink", "tensorboard", "tensorboard:DIR", needs_target=True),
    "wandb": Tracker("gradbus.trackers.wandb", "WandbSink", "wandb", "wandb[:PROJECT]"),
    "mlflow": Tracker("gradbus.trackers.mlflow", "MlflowSink", "mlflow", "mlflow[:URI]"),
    "trackio": Tracker("gradbus.trackers.trackio", "TrackioSink", "trackio", "trackio[:PROJECT]"),
    "csv": Tracker("gradbus.trackers.table", "CsvSink", "", "csv:FILE", needs_target=True),
    "jsonl": Tracker("gradbus.trackers.table", "JsonLinesSink", "", "jsonl:FILE", needs_target=True),
}


def open_sink(to: str, run: TrackedRun) -> Sink:
    """The sink that `to` names: a tracker and, after a colon, where it writes.

    Raises TrackerError for another name, for a package that is not installed, if the tracker cannot be reached, and if another process
    writes the run there.
    """
    name, _, target = to.partition(":")
    tracker = TRACKERS.get(name)
    forms = ", ".join(one.form for one in TRACKERS.values())
    if tracker is None:
        nearest = nearest_name(name, TRACKERS)
        raise TrackerError(f"no tracker is called {name!r}{f', did you mean {nearest!r}' if nearest else ''}; give one of {forms}")
    if tracker.needs_target and not target:
        raise TrackerError(f"{name} needs a place to write to; write {tracker.form}")
    try:
        opened: Sink = getattr(import_module(tracker.module), tracker.sink)(target, run)
    except ModuleNotFoundError as error:
        raise TrackerError(f"{name} needs the package {error.name}, which is not installed; install gradbus[{tracker.extra}]") from None
    except TrackerError:
        raise
    except Exception as error:
        raise TrackerError(f"cannot open {to}: {type(error).__name__}: {first_line(error)}; check its address and its key") from error
    return opened
