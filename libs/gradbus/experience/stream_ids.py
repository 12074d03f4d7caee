"""Stream ids: the order of the experience log, and the names of the archive's segments."""

from __future__ import annotations

from typing import NamedTuple

_LAST_SERIAL = 2**63 - 1


class StreamId(NamedTuple):
    """The id that the buffer gave to an entry. Ids of one log compare in the order of its entries."""

    milliseconds: int
    """Since 1970, by the buffer's clock."""
    serial: int

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """`<milliseconds>-<serial>`. Raises ValueError."""
        milliseconds, _, serial = text.partition("-")
        return cls(int(milliseconds), int(serial))

    def __str__(self) -> str:
        return f"{self.milliseconds}-{self.serial}"

    def before(self) -> StreamId:
        """The greatest id below this one."""
        return StreamId(self.milliseconds, self.serial - 1) if self.serial else StreamId(self.milliseconds - 1, _LAST_SERIAL)

    def after(self) -> StreamId:
        """The next id of the same millisecond."""
        return StreamId(self.milliseconds, self.serial + 1)


START = StreamId(0, 0)
"""Before every entry."""


class SegmentName(NamedTuple):
    """A segment of the archive: `runs/<run>/log/<first>_<last>`."""

    first: StreamId
    last: StreamId

    @classmethod
    def parse(cls, path: str) -> SegmentName:
        """The segment that is stored under `path`. Raises ValueError."""
        first, _, last = path.rpartition("/")[2].partition("_")
        return cls(StreamId.parse(first), StreamId.parse(last))

    def path(self, run_id: str) -> str:
        """The segment's path in object storage."""
        return f"{segments_path(run_id)}/{self.first}_{self.last}"


def segments_path(run_id: str) -> str:
    """The folder of a run's segments in object storage."""
    return f"runs/{run_id}/log"
