"""MLflow: a run of an experiment, found again by its tag."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gradbus.trackers.lock import lock_for
from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun, writing_to

EXPERIMENT: Final = "gradbus"
_TAG: Final = "gradbus_run_id"
_MAX_METRICS: Final = 1000
_MAX_PARAMS: Final = 100
_MAX_VALUE: Final = 500
_MAX_NAME: Final = 200
_REFUSED: Final = re.compile(r"[^\w/.\-: ]")
_STATES: Final[Mapping[str, str]] = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


class MlflowSink:
    """A batch of metrics is not stored as one: each point's event comes last, and what is there of the point after it is not sent again."""

    def __init__(self, target: str, run: TrackedRun) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415 - an extra, and slow to load
        from mlflow.entities import Metric, Param  # noqa: PLC0415

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=target or None)
        self._lock = lock_for(f"mlflow {self._client.tracking_uri}", run.run_id)
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        found = self._client.search_runs([experiment_id], f"tags.`{_TAG}` = '{run.run_id}'")
        if found:
            self._id = found[0].info.run_id
        else:
            self._id = self._client.create_run(experiment_id, tags={_TAG: run.run_id}, run_name=run.title).info.run_id
        params = {_name(name): value for name, value in _flat("", run.spec)}
        unset = [Param(name, value) for name, value in params.items() if not found or name not in found[0].data.params]
        for start in range(0, len(unset), _MAX_PARAMS):
            self._client.log_batch(self._id, params=unset[start : start + _MAX_PARAMS])
        self.written = max((int(metric.value) for metric in self._history(EVENT)), default=0)
        self._is_first = True

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        with writing_to("MLflow"):
            self._write(points)

    def _write(self, points: Sequence[Point]) -> None:
        metrics: list[Any] = []
        for point in points:
            values = {_name(name): value for name, value in point.values.items() if name != EVENT} | {EVENT: point.values[EVENT]}
            if self._is_first:
                values = {name: value for name, value in values.items() if not self._has(name, point.step)}
                self._is_first = False
            metrics += [self._metric(name, value, int(1000 * point.unix_seconds), point.step) for name, value in values.items()]
        for start in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + _MAX_METRICS])

    def close(self, state: str) -> None:
        """See `Sink.close`."""
        with writing_to("MLflow"):
            if state in _STATES:
                self._client.set_terminated(self._id, _STATES[state])
        self._lock.close()

    def _has(self, name: str, step: int) -> bool:
        return name != EVENT and any(metric.step == step for metric in self._history(name))

    def _history(self, name: str) -> Sequence[Any]:
        known = self._client.get_run(self._id).data.metrics
        found: Sequence[Any] = self._client.get_metric_history(self._id, name) if name in known else []
        return found


def _name(given: str) -> str:
    """A name that MLflow takes: it refuses other characters, parts that a path would lose, and much longer ones."""
    parts = _REFUSED.sub("_", given[:_MAX_NAME]).split("/")
    return "/".join(part if part.strip(".") else f"_{part}" for part in parts)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The fields of a spec by their dotted paths, of which long texts are cut."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(f"{name}.{key}" if name else key, part)
    elif value is not None and not name.startswith("model.files."):
        yield name, str(value)[:_MAX_VALUE]
