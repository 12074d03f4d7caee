"""Reads a run's experience log from its first group on: archived segments first, then the buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from redis.asyncio import Redis

from gradbus.errors import CorruptRecordError
from gradbus.experience.archive import ArchiveReader
from gradbus.experience.log import ExperienceLog, StoredEntry
from gradbus.experience.records import unseal_message
from gradbus.experience.stream_ids import START, SegmentName, StreamId
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import LogEntry

_log = get_logger(__name__)
_BATCH = 64
_UNKNOWN = -1
"""Index of an archived entry that cannot be read."""


async def read_experience(
    buffer: Redis, objects: ObjectStore, run_id: str, after: StreamId = START
) -> AsyncGenerator[tuple[StoredEntry, LogEntry | None], None]:
    """The entries after `after`, as stored and decoded, oldest first; None for an entry, or a whole segment, that cannot be read.

    While a run is active, the conductor has the groups of such entries made again. Ends where the log ends at the moment.
    """
    log = ExperienceLog(buffer, run_id)
    archive = ArchiveReader(objects, run_id)
    while True:
        # The buffer before the archive: an entry that was trimmed before the first read is found by the second.
        stored = await log.read(str(after), limit=_BATCH)
        segment = next((name for name in await archive.segments() if name.last > after), None)
        if segment:
            stored = [entry for entry in await _archived(archive, segment) if StreamId.parse(entry.stream_id) > after]
        if not stored:
            return
        for first in range(0, len(stored), _BATCH):
            for found in await asyncio.to_thread(_decode, stored[first : first + _BATCH]):
                yield found
        after = StreamId.parse(stored[-1].stream_id)


async def _archived(archive: ArchiveReader, segment: SegmentName) -> list[StoredEntry]:
    """The entries of a segment; one without a record for a segment that cannot be read."""
    try:
        return [StoredEntry(entry.stream_id, _UNKNOWN, entry.record) for entry in (await archive.read(segment)).entries]
    except CorruptRecordError as error:
        _log.warning("segment_unreadable", error=str(error))
        return [StoredEntry(str(segment.last), _UNKNOWN, b"")]


def _decode(stored: Sequence[StoredEntry]) -> list[tuple[StoredEntry, LogEntry | None]]:
    decoded: list[tuple[StoredEntry, LogEntry | None]] = []
    for item in stored:
        try:
            entry = unseal_message(LogEntry, item.record, f"log entry {item.stream_id}")
            decoded.append((replace(item, index=entry.index), entry))
        except CorruptRecordError as error:
            _log.warning("entry_unreadable", error=str(error))
            decoded.append((item, None))
    return decoded
