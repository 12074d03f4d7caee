"""Sampled groups that are not in the log yet. The first stored answer for an index wins; later ones change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from gradbus.buffer import keys
from gradbus.errors import CorruptRecordError
from gradbus.experience.records import seal, unseal_message
from gradbus.telemetry import WireOperation, get_logger
from gradbus.v1.group_pb2 import Group

_log = get_logger(__name__)
_EVALUATION_SECONDS = 3600
_MEASURED_ENTRIES = 64
"""Of a journal, whose entries may differ a thousandfold in size."""
_AT_ONCE_BYTES = 16 << 20
"""Of one command: the buffer holds the whole of it before it stores anything."""
_LAST_TERM = 2**53 - 1
"""Above every term that a lease can have."""
_FENCED_SECONDS = 86_400
_PUT = WireOperation("redis", {"db.system.name": "redis", "db.operation.name": "put_groups"})
_GET = WireOperation("redis", {"db.system.name": "redis", "db.operation.name": "get_groups"})


async def runs_in(client: Redis) -> set[str]:
    """Ids of the runs that have any key besides a term."""
    found: set[str] = set()
    async for key in client.scan_iter(match=keys.everything("*"), count=1000):
        run_id = keys.run_of(key.decode(errors="replace"))
        if key != keys.term(run_id).encode():
            found.add(run_id)
    return found


class GroupStore:
    """One run's sampled groups and held-out completions."""

    def __init__(self, client: Redis, run_id: str, *, journaled: bool = False) -> None:
        """`journaled`: groups may have journals, which are removed together with them."""
        self._client = client
        self._run_id = run_id
        self._journaled = journaled

    async def put(self, groups: Sequence[Group]) -> None:
        """Stores training groups. A group that is stored already is not replaced."""
        await self._put({keys.assembly(self._run_id, group.index): group for group in groups})

    async def get(self, indexes: Sequence[int]) -> dict[int, Group]:
        """The groups of `indexes` that are stored. A corrupt group is removed, so that it is sampled again."""
        return await self._read({index: keys.assembly(self._run_id, index) for index in indexes})

    async def discard(self, indexes: Iterable[int]) -> None:
        """Removes groups."""
        names = [name for index in indexes for name in keys.before_the_log(self._run_id, index, journaled=self._journaled)]
        if names:
            await self._client.delete(*names)

    async def put_evaluation(self, version: int, groups: Sequence[Group]) -> None:
        """Stores held-out completions of a version; they expire after an hour."""
        await self._put({keys.evaluation(self._run_id, version, group.index): group for group in groups}, _EVALUATION_SECONDS)

    async def get_evaluation(self, version: int, indexes: Sequence[int]) -> dict[int, Group]:
        """The held-out completions of a version that are stored. A corrupt one is removed."""
        return await self._read({index: keys.evaluation(self._run_id, version, index) for index in indexes})

    async def discard_evaluation(self, version: int, indexes: Iterable[int]) -> None:
        """Removes held-out completions."""
        found = list(indexes)
        names = [keys.evaluation(self._run_id, version, index) for index in found] + self.evaluation_journals(version, found)
        if names:
            await self._client.delete(*names)

    def journals(self, indexes: Iterable[int]) -> list[str]:
        """Keys of the journals that training groups may have."""
        return [keys.journal(self._run_id, index) for index in indexes] if self._journaled else []

    def evaluation_journals(self, version: int, indexes: Iterable[int]) -> list[str]:
        """Keys of the journals that held-out rows may have."""
        return [keys.evaluation_journal(self._run_id, version, index) for index in indexes] if self._journaled else []

    async def journal_bytes(self, names: Iterable[str]) -> int:
        """Memory that the journals with these keys take, estimated from some entries of each."""
        async with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.memory_usage(name, samples=_MEASURED_ENTRIES)
            return sum(used or 0 for used in await pipe.execute())

    async def remove_run(self) -> None:
        """Removes every key of the run but its term, which still fences a conductor that does not know that the run is over."""
        kept = keys.term(self._run_id).encode()
        async for key in self._client.scan_iter(match=keys.everything(self._run_id), count=1000):
            if key != kept:
                await self._client.unlink(key)

    async def forget_run(self) -> None:
        """Removes every key of a run that is deleted. Its term fences old conductors for another day."""
        await self.remove_run()
        await self._client.set(keys.term(self._run_id), _LAST_TERM, ex=_FENCED_SECONDS, xx=True)

    async def _put(self, groups: Mapping[str, Group], seconds: int | None = None) -> None:
        if not groups:
            return
        records = {name: seal(group.SerializeToString()) for name, group in groups.items()}
        options: list[str | int] = ["NX"] if seconds is None else ["NX", "EX", seconds]
        size = sum(map(len, records.values()))
        with _PUT.measured(size, len(records)):
            # It has one answer: to read 32 of them takes twice as long as all else. It stores all groups or, if one is there, none.
            if seconds is None and size <= _AT_ONCE_BYTES and await self._client.msetnx(records):
                return
            async with self._client.pipeline(transaction=False) as pipe:
                for name, record in records.items():
                    pipe.execute_command("SET", name, record, *options)  # `pipe.set` takes longer to read its options than to write them
                await pipe.execute()

    async def _read(self, names: dict[int, str]) -> dict[int, Group]:
        if not names:
            return {}
        with _GET.measured(items=0) as reading:
            records: list[Any] = await self._client.mget(list(names.values()))
            sizes = [len(record) for record in records if record is not None]
            reading.items, reading.payload_bytes = len(sizes), sum(sizes)
        found: dict[int, Group] = {}
        for (index, name), record in zip(names.items(), records, strict=True):
            if record is None:
                continue
            try:
                group = unseal_message(Group, record, f"group {index} of {self._run_id}")
            except CorruptRecordError as error:
                _log.warning("corrupt_group_removed", run_id=self._run_id, index=index, error=str(error))
                await self._client.delete(name)
                continue
            found[index] = group
        return found
