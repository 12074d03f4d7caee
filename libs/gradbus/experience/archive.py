"""The archive: what a checkpoint covers moves from the buffer to object storage, sealed, and only then is trimmed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gradbus.experience.log import ExperienceLog, StoredEntry
from gradbus.experience.records import seal, unseal
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import LogEntry, LogSegment, SegmentEntry
from gradbus.v1.weights_pb2 import Frontier

_log = get_logger(__name__)
_MOST_ENTRIES = 2048
_MOST_BYTES = 64 << 20
"""Of a segment, about: it is several times in memory while it is made, and protobuf has a bound of its own."""
_PAGE = 128


class Archive:
    """One run's sealed segments: `runs/<run>/log/<first>_<last>`."""

    def __init__(self, objects: ObjectStore, log: ExperienceLog, run_id: str) -> None:
        self._objects = objects
        self._log = log
        self._run_id = run_id
        self._last: str | None = None

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
        """Archives and trims all that is left: the run is over, nobody reads the log any more."""
        while entries := await self._oldest():
            await self._move(entries)

    async def entries(self) -> AsyncIterator[LogEntry]:
        """What was archived, oldest first."""
        paths = await self._objects.list(f"runs/{self._run_id}/log")
        for path in sorted(paths, key=lambda path: _order(path.rpartition("_")[2])):
            segment = LogSegment.FromString(unseal(await self._objects.get(path), path))
            for entry in segment.entries:
                yield LogEntry.FromString(unseal(entry.record, f"{path}, entry {entry.stream_id}"))

    async def _oldest(self) -> list[StoredEntry]:
        """Where the log begins: what makes a segment."""
        entries: list[StoredEntry] = []
        size = 0
        while len(entries) < _MOST_ENTRIES and size < _MOST_BYTES:
            page = await self._log.read(entries[-1].stream_id if entries else "0-0", _PAGE)
            if not page:
                break
            entries += page
            size += sum(len(entry.record) for entry in page)
        return entries

    async def _move(self, entries: list[StoredEntry]) -> None:
        archived = _order(await self._archived())
        older = [entry for entry in entries if _order(entry.stream_id) <= archived]
        known = await self._sealed_among(older) if older else set()
        fresh = [entry for entry in entries if entry.record not in known]
        if fresh:
            await self._seal(fresh)
        await self._log.trim(entries[-1].stream_id)

    async def _sealed_among(self, entries: list[StoredEntry]) -> set[bytes]:
        """Records that a crash left in the log though they are archived. A log made anew by an earlier clock has others under such ids."""
        known: set[bytes] = set()
        oldest, newest = _order(entries[0].stream_id), _order(entries[-1].stream_id)
        for path in await self._objects.list(f"runs/{self._run_id}/log"):
            first, _, last = path.rpartition("/")[2].partition("_")
            if _order(first) <= newest and _order(last) >= oldest:
                segment = LogSegment.FromString(unseal(await self._objects.get(path), path))
                known.update(entry.record for entry in segment.entries)
        return known

    async def _archived(self) -> str:
        """Stream id of the newest archived entry: after a restart some of the log may be archived and not yet trimmed."""
        if self._last is None:
            names = [path.rpartition("/")[2] for path in await self._objects.list(f"runs/{self._run_id}/log")]
            self._last = max((name.rpartition("_")[2] for name in names), key=_order, default="0-0")
        return self._last

    async def _seal(self, entries: list[StoredEntry]) -> None:
        first, last = entries[0].stream_id, entries[-1].stream_id
        segment = LogSegment(
            run_id=self._run_id,
            first=first,
            last=last,
            entries=[SegmentEntry(stream_id=entry.stream_id, record=entry.record) for entry in entries],
        )
        await self._objects.put(f"runs/{self._run_id}/log/{first}_{last}", seal(segment.SerializeToString()), durable=True)
        self._last = max(last, await self._archived(), key=_order)
        _log.debug("log_archived", run_id=self._run_id, entries=len(entries), last=last)


def _prefix(entries: list[StoredEntry], below: int, above: frozenset[int]) -> list[StoredEntry]:
    covered: list[StoredEntry] = []
    for entry in entries:
        if entry.index >= below and entry.index not in above:
            break
        covered.append(entry)
    return covered


def _order(stream_id: str) -> tuple[int, int]:
    milliseconds, _, serial = stream_id.partition("-")
    return int(milliseconds), int(serial)
