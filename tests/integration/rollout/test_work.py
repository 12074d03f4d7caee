"""Work of a rollout worker for each sample, group and task, held to the bounds of tests/work/work_bounds.py."""

import itertools
from contextlib import asynccontextmanager

import pytest
import torch
from work_counters import OperatorCounter, PythonCounter, check, growth, least
from work_traffic import counted_traffic, kind

from gradbus.aio.tasks import background
from gradbus.bus import TaskQueue, subjects
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.experience import GroupStore
from gradbus.process import WorkerHeartbeat
from gradbus.spec import RunSpec
from gradbus.telemetry import run_metrics
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch.samples.calls import GenerateCall
from gradbus_rollout.tasks.prompts import PromptTable
from gradbus_rollout.tasks.sampler import PromptTables, SingleTurnSampler
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_rollout.worker import RolloutWorker, WorkerParts

from .conftest import NEW_TOKENS, until

SLOTS = 64


@pytest.fixture
async def engine(model_folder):
    """All samples of a task fit into it, and each has `NEW_TOKENS` tokens: no token ends a sample."""
    engine = TorchEngine.from_folder(model_folder, TorchEngineConfig(slots=SLOTS, max_new_tokens=NEW_TOKENS))
    yield engine
    await engine.close()


@pytest.fixture
async def table(fork_server, model_folder, prompts, row_file):
    tokenizer = await Tokenizer.open(fork_server, model_folder, PromptLimits(NEW_TOKENS), Deadlines(load=60, call=60))
    yield await PromptTable.open(tokenizer, row_file(prompts))
    await tokenizer.close()


class Working:
    """A worker of one run, to which tasks are given one after the other."""

    def __init__(self, worker, queue, hints, indexes):
        self._worker = worker
        self._queue = queue
        self._hints = hints
        self._indexes = indexes

    async def sample(self, groups):
        """One task of so many groups, from the queue to the buffer."""
        wanted = [GroupTask(index=index, row=index % 2) for index in itertools.islice(self._indexes, groups)]
        said = len(self._hints)
        await self._queue.publish([Task(task_id=str(wanted[0].index), kind=TaskKind.TASK_KIND_TRAIN, version=0, groups=wanted)])
        await until(lambda: len(self._hints) > said and not self._worker._presence.claims)


@pytest.fixture
def working(bus, buffer, objects, stub, run_id, tmp_path, engine, table, trainer):
    indexes = itertools.count()

    @asynccontextmanager
    async def work(samples):
        spec = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
        spec |= {"schedule": {"steps": 10}, "rollout": {"slots": SLOTS, "group_size": samples, "max_new_tokens": NEW_TOKENS}}
        record = RunRecord(run_id=run_id, spec=RunSpec.model_validate(spec), created_unix_ns=1)
        versions, store = VersionLoader(bus, objects, stub, run_id, tmp_path), GroupStore(buffer, run_id)
        heartbeat = WorkerHeartbeat(bus, WorkerPresence(worker="worker", role="rollout", incarnation="1"))
        queue, hints = TaskQueue(bus, run_id), []

        async def note(payload):
            hints.append(payload)

        await queue.open()
        await trainer.publish(0)
        async with versions.followed(), bus.subscribed(subjects.groups(run_id), note):
            sampler = SingleTurnSampler(record, engine, PromptTables(table, table), heartbeat.presence)
            worker = RolloutWorker(record, WorkerParts(bus, store, engine, versions, sampler, heartbeat, run_metrics(run_id)))
            async with background(worker.serve(), "worker"):
                yield Working(worker, queue, hints, indexes)
        await queue.remove()  # with what the worker still asks of it

    return work


async def test_lines_and_calls_for_each_sample_and_group(working):
    counter = PythonCounter()

    async def task(worker, groups):
        with counter.counting() as work:
            await worker.sample(groups)
        return work.lines, work.calls

    with counter.tracing():
        async with working(4) as worker:
            base = await least(lambda: task(worker, 4))
            groups = await least(lambda: task(worker, 12))
        async with working(12) as worker:
            samples = await least(lambda: task(worker, 4))
    for what, small, more_samples, more_groups in zip(("lines", "calls"), base, samples, groups, strict=True):
        check(f"rollout: {what} a sample", growth(small, more_samples, 32))
        check(f"rollout: {what} a group of four", growth(small, more_groups, 8))


async def test_traffic_of_a_task(working, buffer):
    async def tasks(worker, count):
        async with counted_traffic(buffer) as counts:
            for _ in range(count):
                await worker.sample(2)
        return [counts]

    async with working(4) as worker:
        (base,), (more,) = await least(lambda: tasks(worker, 4)), await least(lambda: tasks(worker, 12))
    for name in ("messages", "commands"):
        check(f"rollout: {name} a task", growth(kind(base, name), kind(more, name), 8))


@torch.inference_mode()
def test_a_decode_step_is_few_operators(model_folder):
    """Counted in this thread, without the engine's own."""
    counted = []
    for tokens in (4, 8):
        engine = TorchEngine.from_folder(model_folder, TorchEngineConfig(slots=8, max_new_tokens=tokens))
        engine._versions.replace(engine._versions.read([model_folder / "model.safetensors"]))
        scheduler = engine._scheduler
        scheduler.submit(GenerateCall([PromptGroup("group", (5, 6, 7), tuple(range(8)))]))
        with OperatorCounter() as counter:
            while scheduler.calls:
                scheduler.step()
        counted.append(counter.counts)
    check("rollout: operators a decode step", growth(*counted, 4))
