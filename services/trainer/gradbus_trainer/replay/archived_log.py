"""The archive as a source of steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from google.protobuf.message import DecodeError

from gradbus.algorithms import Algorithm
from gradbus.errors import CorruptRecordError, ObjectMissingError, ReplayError
from gradbus.experience import StoredEntry
from gradbus.experience.archive import ArchiveReader
from gradbus.experience.records import unseal_message
from gradbus.experience.stream_ids import SegmentName
from gradbus.objects import ObjectStore
from gradbus.v1.group_pb2 import LogEntry, LogSegment
from gradbus_trainer.step.collector import Collector
from gradbus_trainer.step.groups import LoggedGroup


class ArchivedLog:
    """The `StepSource` of a replay: feeds a collector from the archive, no further than the steps need, and repairs nothing."""

    def __init__(self, objects: ObjectStore, run_id: str, algorithm: Algorithm, collector: Collector) -> None:
        self._archive = ArchiveReader(objects, run_id)
        self._run_id = run_id
        self._algorithm = algorithm
        self._collector = collector
        self._entries = self._read()

    @property
    def waiting(self) -> int:
        """See `StepSource`."""
        return self._collector.size

    async def next_step(self, step: int) -> Sequence[LoggedGroup] | None:
        """See `StepSource`; None if the archive ends before the step is whole. Raises ReplayError for a damaged archive."""
        while (groups := self._collector.take(step)) is None:
            added = 0
            async for group in self._entries:
                self._collector.add(group)
                added += 1
                if not self._collector.lacking(step):
                    break
            if not added:
                return None
        return groups

    def lacking(self, step: int) -> str:
        """The groups of `step` that the archive does not hold, once `next_step` has returned None."""
        return self._collector.lacking(step)

    async def _read(self) -> AsyncIterator[LoggedGroup]:
        for segment in await self._archive.segments():
            path = segment.path(self._run_id)
            for stored in (await self._segment(segment, path)).entries:
                try:
                    index = unseal_message(LogEntry, stored.record, stored.stream_id).index
                    yield LoggedGroup.of(StoredEntry(stored.stream_id, index, stored.record), self._algorithm)
                except (CorruptRecordError, DecodeError, ValueError) as error:
                    raise _damaged(f"entry {stored.stream_id} of {path}", error) from error

    async def _segment(self, segment: SegmentName, path: str) -> LogSegment:
        try:
            return await self._archive.read(segment)
        except (CorruptRecordError, ObjectMissingError) as error:
            raise _damaged(path, error) from error


def _damaged(what: str, error: Exception) -> ReplayError:
    reason = str(error).partition(";")[0]
    return ReplayError(f"the archive is damaged or was changed, at {what} ({reason}); restore that object from a copy of object storage")
