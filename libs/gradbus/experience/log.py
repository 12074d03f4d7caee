"""The experience log in the buffer: one stream a run, one entry a group, each group once. Only the conductor appends."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gradbus.buffer import functions, keys
from gradbus.errors import CorruptRecordError, FencedError, SettingsError
from gradbus.experience.records import record_digest, seal, unseal_message
from gradbus.experience.stream_ids import StreamId
from gradbus.telemetry import WireOperation
from gradbus.v1.group_pb2 import LogEntry

_WRITE = WireOperation("redis", {"db.system.name": "redis", "db.operation.name": "append"})
_READ = WireOperation("redis", {"db.system.name": "redis", "db.operation.name": "read_log"})


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry as it is stored."""

    stream_id: str
    index: int
    record: bytes

    def decode(self) -> LogEntry:
        """The entry. Raises CorruptRecordError if the content does not match the digest or the index."""
        entry = unseal_message(LogEntry, self.record, f"log entry {self.stream_id}")
        if entry.index != self.index:
            raise CorruptRecordError(f"log entry {self.stream_id} names index {entry.index}, stored as {self.index}; it must be made again")
        return entry

    @property
    def written(self) -> int:
        """When the buffer took the entry: nanoseconds since 1970, to the millisecond."""
        return StreamId.parse(self.stream_id).milliseconds * 1_000_000

    @property
    def digest(self) -> str:
        """SHA-256 of the entry's payload, hex."""
        return record_digest(self.record)


class ExperienceLog:
    """One run's log."""

    def __init__(self, client: Redis, run_id: str, *, journaled: bool = False) -> None:
        """`journaled`: groups may have journals, which are removed when they enter the log."""
        self._client = client
        self._run_id = run_id
        self._journaled = journaled
        self._fixed = [keys.term(run_id), keys.admitted(run_id), keys.experience(run_id)]

    async def open_term(self, term: int) -> None:
        """Fences every older conductor. Raises FencedError if a newer one has written already."""
        await self._call(functions.OPEN, term, self._fixed[:1], [])

    async def append(self, term: int, entries: Mapping[int, LogEntry]) -> list[int]:
        """Adds entries by index, except those whose index entered the log before. Returns the indexes that were added.

        Raises FencedError if a newer conductor has written.
        """
        if not entries:
            return []
        arguments: list[int | bytes] = []
        payload = 0
        for index, entry in entries.items():
            record = seal(entry.SerializeToString())
            arguments += [index, record]
            payload += len(record)
        names = [*self._fixed]
        for index in entries:
            names += keys.before_the_log(self._run_id, index, journaled=self._journaled)
        with _WRITE.measured(payload, len(entries)):
            accepted = await self._call(functions.APPEND, term, names, arguments)
        return [int(index) for index in accepted]

    async def delete(self, term: int, entries: Sequence[StoredEntry]) -> None:
        """Deletes corrupt entries, so that their indexes can be appended again."""
        arguments: list[int | str] = [part for entry in entries for part in (entry.index, entry.stream_id)]
        await self._call(functions.DELETE, term, self._fixed, arguments)

    async def reopen(self, term: int, first: int, present: Collection[int]) -> list[int]:
        """Allows indexes to be appended again that were admitted, are `first` or above, and are not `present`; returns them.

        For a log that lost entries. No entry at or above `first` may have been trimmed.
        """
        lost = sorted(index for index in await self._marked(first, -1) - set(present) if index >= first)
        if lost:
            await self._call(functions.REOPEN, term, self._fixed[:2], lost)
        return lost

    async def admitted(self, first: int, last: int) -> set[int]:
        """Indexes in [first, last) that are in the log or were trimmed from it."""
        return {index for index in await self._marked(first, (last - 1) // 8) if first <= index < last}

    async def read(self, after: str = "0-0", limit: int = 512, wait_seconds: float = 0.0) -> list[StoredEntry]:
        """Up to `limit` entries after `after`, oldest first; waits up to `wait_seconds` for the first."""
        block = int(wait_seconds * 1000) or None
        with _READ.measured() as reading:
            found: Any = await self._client.xread({keys.experience(self._run_id): after}, count=limit, block=block)
            rows = found[0][1] if found else []
            reading.items, reading.payload_bytes = len(rows), sum(len(fields.get(b"r", b"")) for _, fields in rows)
        return [StoredEntry(stream_id.decode(), _index(fields.get(b"i", b"")), fields.get(b"r", b"")) for stream_id, fields in rows]

    async def trim(self, last: str) -> None:
        """Removes every entry up to and including `last`. Both a checkpoint and the archive must cover them."""
        await self._client.xtrim(keys.experience(self._run_id), minid=str(StreamId.parse(last).after()), approximate=False)

    async def size(self) -> tuple[int, int]:
        """Number of entries in the buffer, and the bytes of memory they take. Every entry counts: the oldest are often the shortest."""
        length: Any = await self._client.xlen(keys.experience(self._run_id))
        used: Any = await self._client.memory_usage(keys.experience(self._run_id), samples=0)
        return int(length), int(used or 0)

    async def _marked(self, first: int, last_byte: int) -> set[int]:
        """Indexes set in the bitmap, from the byte with `first` to `last_byte` (-1: the end)."""
        bits: Any = await self._client.getrange(keys.admitted(self._run_id), first // 8, last_byte)
        offset = first // 8 * 8
        return {offset + 8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte & (0x80 >> bit)}

    async def _call(self, function: str, term: int, names: Sequence[str], arguments: Sequence[int | str | bytes]) -> list[int]:
        try:
            reply: Any = await self._client.fcall(function, len(names), *names, term, *arguments)
        except ResponseError as error:
            if str(error).startswith("FENCED"):
                raise FencedError(f"term {term} of {self._run_id} is over, {error}; a newer conductor has the run, let go of it") from None
            if "Function not found" in str(error):
                raise SettingsError(f"the buffer lacks the function {function}; start the stack again, that loads it") from None
            raise
        return list(reply) if isinstance(reply, list) else []


def _index(field: bytes) -> int:
    """The index in a field; -1, which no entry has, for a corrupt field."""
    return int(field) if field.isdigit() else -1
