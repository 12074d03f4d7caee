"""The archive: the log's oldest entries in object storage. A segment is sealed there before the buffer's log is trimmed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gradbus.experience.log import ExperienceLog, StoredEntry
from gradbus.experience.records import seal, unseal_message
from gradbus.experience.stream_ids import START, SegmentName, StreamId, segments_path
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import LogEntry, LogSegment, SegmentEntry
from gradbus.v1.weights_pb2 import Frontier

_log = get_logger(__name__)
_MAX_ENTRIES = 2048
_MAX_BYTES = 64 << 20
"""Approximate size of a segment: it is several times in memory while it is made, and protobuf limits a message's size."""
_BATCH = 128


class ArchiveReader:
    """One run's segments."""

    def __init__(self, objects: ObjectStore, run_id: str) -> None:
        self._objects = objects
        self._run_id = run_id

    async def segments(self) -> list[SegmentName]:
        """Names of all segments, oldest first. Other objects in the folder are no part of the archive."""
        return sorted(filter(None, map(_segment_name, await self._objects.list(segments_path(self._run_id)))))

    async def read(self, segment: SegmentName) -> LogSegment:
        """One segment. Raises CorruptRecordError if it does not match its digest."""
        path = segment.path(self._run_id)
        return unseal_message(LogSegment, await self._objects.get(path), path)

    async def entries(self) -> AsyncIterator[LogEntry]:
        """All archived entries, oldest first. Raises CorruptRecordError if an entry does not match its digest."""
        for segment in await self.segments():
            for entry in (await self.read(segment)).entries:
                yield unseal_message(LogEntry, entry.record, f"{segment.path(self._run_id)}, entry {entry.stream_id}")


async def remove_archive(objects: ObjectStore, run_id: str) -> None:
    """Removes all segments of a run."""
    for path in await objects.list(segments_path(run_id)):
        await objects.delete(path)


class ArchiveWriter:
    """Moves one run's log into its archive. Only the run's conductor writes."""

    def __init__(self, objects: ObjectStore, log: ExperienceLog, run_id: str) -> None:
        self.reader = ArchiveReader(objects, run_id)
        self._objects = objects
        self._log = log
        self._run_id = run_id
        self._last: StreamId | None = None

    async def advance(self, frontier: Frontier) -> int:
        """Archives and trims the longest prefix of the log that `frontier` covers; returns its length."""
        covered = frozenset(frontier.above)
        moved = 0
        while True:
            entries = await self._oldest()
            prefix = _prefix(entries, frontier.below, covered)
            if prefix:
                await self._move(prefix)
                moved += len(prefix)
            if not prefix or len(prefix) < len(entries):
                return moved

    async def finish(self) -> None:
        """Archives and trims the whole log: the run is over, and nobody reads it any more."""
        while entries := await self._oldest():
            await self._move(entries)

    async def _oldest(self) -> list[StoredEntry]:
        """The log's oldest entries, at most as many as make a segment."""
        entries: list[StoredEntry] = []
        size = 0
        while len(entries) < _MAX_ENTRIES and size < _MAX_BYTES:
            batch = await self._log.read(entries[-1].stream_id if entries else str(START), _BATCH)
            if not batch:
                break
            entries += batch
            size += sum(len(entry.record) for entry in batch)
        return entries

    async def _move(self, entries: list[StoredEntry]) -> None:
        newest = await self._newest_archived()
        older = [entry for entry in entries if StreamId.parse(entry.stream_id) <= newest]
        archived = await self._archived_records(older) if older else set()
        fresh = [entry for entry in entries if entry.record not in archived]
        if fresh:
            await self._seal(fresh)
        await self._log.trim(entries[-1].stream_id)

    async def _archived_records(self, entries: list[StoredEntry]) -> set[bytes]:
        """Records of the segments that overlap with `entries`.

        After a crash the log may still hold archived entries. Ids alone do not tell: a log that was made again by an earlier
        clock has other entries under such ids.
        """
        records: set[bytes] = set()
        oldest, newest = StreamId.parse(entries[0].stream_id), StreamId.parse(entries[-1].stream_id)
        for segment in await self.reader.segments():
            if segment.first <= newest and segment.last >= oldest:
                records.update(entry.record for entry in (await self.reader.read(segment)).entries)
        return records

    async def _newest_archived(self) -> StreamId:
        """Stream id of the newest archived entry: after a restart some of the log may be archived and not yet trimmed."""
        if self._last is None:
            self._last = max((segment.last for segment in await self.reader.segments()), default=START)
        return self._last

    async def _seal(self, entries: list[StoredEntry]) -> None:
        first, last = entries[0].stream_id, entries[-1].stream_id
        segment = LogSegment(
            run_id=self._run_id,
            first=first,
            last=last,
            entries=[SegmentEntry(stream_id=entry.stream_id, record=entry.record) for entry in entries],
        )
        name = SegmentName(StreamId.parse(first), StreamId.parse(last))
        await self._objects.put(name.path(self._run_id), seal(segment.SerializeToString()), durable=True)
        self._last = max(name.last, await self._newest_archived())
        _log.debug("log_archived", run_id=self._run_id, entries=len(entries), last=last)


def _segment_name(path: str) -> SegmentName | None:
    try:
        return SegmentName.parse(path)
    except ValueError:
        _log.warning("segment_name_ignored", path=path)
        return None


def _prefix(entries: list[StoredEntry], below: int, above: frozenset[int]) -> list[StoredEntry]:
    covered: list[StoredEntry] = []
    for entry in entries:
        if entry.index >= below and entry.index not in above:
            break
        covered.append(entry)
    return covered
