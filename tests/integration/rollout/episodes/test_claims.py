"""The tasks of episodes are claimed before the episodes begin: thousands that begin at a time would hold up the heartbeat."""

import asyncio

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, TaskQueue
from gradbus.control.runs import WorkerPresence
from gradbus.experience import GroupStore
from gradbus.process import WorkerHeartbeat
from gradbus.telemetry import run_metrics
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_rollout.worker import RolloutWorker, WorkerParts


class Sampler:
    """Reads what the worker claims by then, and samples for ever."""

    def __init__(self, workers):
        self.claims = asyncio.get_running_loop().create_future()
        self._workers = workers

    async def sample(self, task, times):
        stored = await self._workers.get("worker-a")
        self.claims.set_result(WorkerPresence.model_validate_json(stored.value).claims)
        await asyncio.Event().wait()


async def test_a_task_is_claimed_before_its_episodes_begin(bus, buffer, objects, stub, run_id, tmp_path, engine, trainer, new_record):
    await trainer.publish(0)
    record = await new_record()
    spec = record.spec.model_validate(record.spec.model_dump(exclude={"reward"}) | {"environment": {"service": "http://world:1"}})
    record, queue = record.model_copy(update={"spec": spec}), TaskQueue(bus, run_id)
    groups = [GroupTask(index=index, row=0) for index in (0, 3)]
    versions = VersionLoader(bus, objects, stub, run_id, tmp_path)
    heartbeat = WorkerHeartbeat(bus, WorkerPresence(worker="worker-a", role="rollout", incarnation="1"))
    async with versions.followed(), heartbeat.present():
        sampler = Sampler(await bus.bucket(Buckets.WORKERS))
        parts = WorkerParts(bus, GroupStore(buffer, run_id), engine, versions, sampler, heartbeat, run_metrics(run_id), None)
        async with background(RolloutWorker(record, parts).serve(), "worker"):
            await queue.publish([Task(task_id="t", kind=TaskKind.TASK_KIND_TRAIN, version=0, groups=groups)])
            assert await asyncio.wait_for(sampler.claims, 60) == [0, 3]
