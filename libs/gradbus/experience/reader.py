"""A run's experience log from its first group on: archived segments in object storage, then what the buffer holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from redis.asyncio import Redis

from gradbus.errors import CorruptRecordError
from gradbus.experience.log import ExperienceLog
from gradbus.experience.records import unseal
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import LogEntry, LogSegment

_log = get_logger(__name__)
_BATCH = 64
Position = tuple[int, int]


async def read_experience(
    buffer: Redis, objects: ObjectStore, run_id: str, after: str = "0-0"
) -> AsyncGenerator[tuple[str, LogEntry], None]:
    """(stream id, entry) behind `after`, oldest first; corrupt entries are left out, for they are being made again."""
    log = ExperienceLog(buffer, run_id)
    position = parse_position(after)
    while True:
        # The buffer before the archive: whatever was trimmed before the first read is in the second.
        stored = await log.read(f"{position[0]}-{position[1]}", most=_BATCH)
        records = [(entry.stream_id, entry.record) for entry in stored]
        segment = await _segment_behind(objects, run_id, position)
        if segment:
            archived = LogSegment.FromString(unseal(await objects.get(segment), segment))
            records = [(entry.stream_id, entry.record) for entry in archived.entries if parse_position(entry.stream_id) > position]
        if not records:
            return
        for first in range(0, len(records), _BATCH):
            for found in await asyncio.to_thread(_decoded, records[first : first + _BATCH]):
                yield found
        position = parse_position(records[-1][0])


def parse_position(stream_id: str) -> Position:
    """A stream id as two numbers that compare. Raises ValueError."""
    milliseconds, _, serial = stream_id.partition("-")
    return int(milliseconds), int(serial)


async def _segment_behind(objects: ObjectStore, run_id: str, position: Position) -> str | None:
    """The oldest archived segment that reaches beyond `position`."""
    found = []
    for path in await objects.list(f"runs/{run_id}/log"):
        first, _, last = path.rpartition("/")[2].partition("_")
        if parse_position(last) > position:
            found.append((parse_position(first), path))
    return min(found)[1] if found else None


def _decoded(records: Sequence[tuple[str, bytes]]) -> list[tuple[str, LogEntry]]:
    entries = []
    for stream_id, record in records:
        try:
            entries.append((stream_id, LogEntry.FromString(unseal(record, f"log entry {stream_id}"))))
        except CorruptRecordError as error:
            _log.warning("corrupt_entry_left_out", error=str(error))
    return entries
