"""Reads a run's experience log from its first group on: archived segments first, then the buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from redis.asyncio import Redis

from gradbus.errors import CorruptRecordError
from gradbus.experience.archive import ArchiveReader
from gradbus.experience.log import ExperienceLog, StoredEntry
from gradbus.experience.records import unseal
from gradbus.experience.stream_ids import START, StreamId
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import LogEntry

_log = get_logger(__name__)
_BATCH = 64


async def read_experience(
    buffer: Redis, objects: ObjectStore, run_id: str, after: StreamId = START
) -> AsyncGenerator[tuple[StoredEntry, LogEntry], None]:
    """The entries after `after`, as stored and decoded, oldest first.

    Corrupt entries are left out: the conductor has their groups made again. Ends where the log ends at the moment.
    """
    log = ExperienceLog(buffer, run_id)
    archive = ArchiveReader(objects, run_id)
    while True:
        # The buffer before the archive: an entry that was trimmed before the first read is found by the second.
        records = [(entry.stream_id, entry.record) for entry in await log.read(str(after), limit=_BATCH)]
        segment = next((name for name in await archive.segments() if name.last > after), None)
        if segment:
            archived = (await archive.read(segment)).entries
            records = [(entry.stream_id, entry.record) for entry in archived if StreamId.parse(entry.stream_id) > after]
        if not records:
            return
        for first in range(0, len(records), _BATCH):
            for found in await asyncio.to_thread(_decode, records[first : first + _BATCH]):
                yield found
        after = StreamId.parse(records[-1][0])


def _decode(records: Sequence[tuple[str, bytes]]) -> list[tuple[StoredEntry, LogEntry]]:
    decoded = []
    for stream_id, record in records:
        try:
            entry = LogEntry.FromString(unseal(record, f"log entry {stream_id}"))
        except CorruptRecordError as error:
            _log.warning("corrupt_entry_left_out", error=str(error))
            continue
        decoded.append((StoredEntry(stream_id, entry.index, record), entry))
    return decoded
