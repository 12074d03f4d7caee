"""What a tracker is for the feed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from gradbus.errors import TrackerError, first_line
from gradbus.trackers.points import Point


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that is shown."""

    run_id: str
    name: str
    spec: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Its name in a tracker: of several runs with one name each has its own."""
        return f"{self.name}-{self.run_id}"


class Sink(Protocol):
    """One run in one tracker. Methods raise TrackerError."""

    @property
    def written(self) -> int:
        """The last event whose point the tracker holds, read from the tracker itself; 0 if it holds none."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Adds points, in the order of their events, all of them after `written`."""
        ...

    def close(self, state: str) -> None:
        """Ends the run there, or only the connection; `state` is the run's."""
        ...


@contextmanager
def writing_to(tracker: str) -> Iterator[None]:
    """Raises TrackerError for the errors of the tracker's package, which have no base in common."""
    try:
        yield
    except Exception as error:
        raise TrackerError(
            f"cannot write to {tracker}: {first_line(error)}; correct that if it is not about the connection, and start the command again, "
            "it goes on where it ended"
        ) from error
