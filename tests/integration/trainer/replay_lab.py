"""A run that was trained and archived, and its replay in this process."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gradbus.control.replay import ReplayOrder
from gradbus.experience.archive import ArchiveReader
from gradbus.experience.records import seal, unseal_message
from gradbus.run_files.record import find_record
from gradbus.run_files.versions import read_versions
from gradbus.v1.group_pb2 import LogEntry, LogSegment
from gradbus_trainer.replay.plan import ReplayPlan
from gradbus_trainer.replay.replay import replay
from gradbus_trainer.settings import Settings


@dataclass
class Archived:
    """What is left in object storage, and ways to change it."""

    run: object
    settings: Settings
    told: list = field(default_factory=list)

    @property
    def objects(self):
        return self.run.objects

    async def replay(self, *, start=0, to=None, anyway=False):
        record = await find_record(self.objects, self.run.run_id)
        order = ReplayOrder(run=record.run_id, start=start, to=to, anyway=anyway)
        plan = ReplayPlan.of(order, record, await read_versions(self.objects, record.run_id))
        return await replay(self.settings, self.objects, plan, anyway=anyway, report=self.told.append)

    @asynccontextmanager
    async def entries(self):
        """The archive's only segment as a list of (stream id, entry), which is stored again with digests that fit."""
        reader = ArchiveReader(self.objects, self.run.run_id)
        (name,) = await reader.segments()
        segment = await reader.read(name)
        found = [(one.stream_id, unseal_message(LogEntry, one.record, "entry")) for one in segment.entries]
        yield found
        changed = LogSegment(run_id=segment.run_id, first=segment.first, last=segment.last)
        for stream_id, entry in found:
            changed.entries.add(stream_id=stream_id, record=seal(entry.SerializeToString()))
        await self.objects.put(name.path(self.run.run_id), seal(changed.SerializeToString()))

    async def manifests(self, kind, message):
        """Path to manifest, of versions or of checkpoints."""
        paths = await self.objects.list(f"runs/{self.run.run_id}/{kind}")
        return {path: unseal_message(message, await self.objects.get(path), path) for path in paths}
