"""Parsed runs: the newest are listed again and again, and few of them have changed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from gradbus.control.runs import read_run
from gradbus.errors import CorruptRecordError
from gradbus_gateway.runs.store import Run, UnreadableRun, read_annotations

_MOST_RUNS: Final = 1024  # a page has up to 1,000
_MOST_BYTES: Final = 8 << 20
"""Of the keys of all runs here but their annotations. A small run takes ten times the bytes of its keys, a large one about as many."""


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The values of a run's keys."""

    spec: bytes
    desired: bytes | None
    status: bytes | None
    annotations: bytes | None

    @property
    def size(self) -> int:
        """Bytes of the keys but the annotations, which are small, and of which a thousand long ones would leave no room for specs."""
        return sum(len(value or b"") for value in (self.spec, self.desired, self.status))


class ParsedRuns:
    """Keeps the runs that were read last, each as it was then: a run whose status changes takes no more room than another."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, tuple[RunKeys, Run | UnreadableRun]] = OrderedDict()
        self._bytes = 0

    def read(self, run_id: str, keys: RunKeys) -> Run | UnreadableRun:
        """The run that these keys describe."""
        known, run = self._runs.get(run_id, (None, None))
        if run is None or known != keys:
            run = _parsed(run_id, keys)
            self.forget(run_id)
            self._runs[run_id] = keys, run
            self._bytes += keys.size
            while len(self._runs) > _MOST_RUNS or self._bytes > _MOST_BYTES:
                self.forget(next(iter(self._runs)))
        else:
            self._runs.move_to_end(run_id)
        return run

    def forget(self, run_id: str) -> None:
        """Drops a run, if it is here."""
        if run_id in self._runs:
            keys, _ = self._runs.pop(run_id)
            self._bytes -= keys.size


def _parsed(run_id: str, keys: RunKeys) -> Run | UnreadableRun:
    try:
        return Run(*read_run(run_id, keys.spec, keys.desired, keys.status), read_annotations(run_id, keys.annotations))
    except CorruptRecordError as error:
        return UnreadableRun(run_id, str(error))
