"""The worker over a real queue, buffer and weight store: tasks in, groups and hints out."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from obstore.store import MemoryStore
from structlog.testing import capture_logs

from gradbus.aio.tasks import background
from gradbus.bus import TaskQueue, subjects
from gradbus.control.runs import WorkerPresence
from gradbus.experience import GroupStore
from gradbus.ids import sample_seed
from gradbus.objects import ObjectStore
from gradbus.objects.paths import blob_path
from gradbus.process import WorkerHeartbeat
from gradbus.telemetry import run_metrics
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer
from gradbus.v1.task_pb2 import GroupsSampled, GroupTask, Task, TaskKind
from gradbus_rollout import worker as worker_module
from gradbus_rollout.tasks.prompts import PromptTable
from gradbus_rollout.tasks.sampler import PromptTables, SingleTurnSampler
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_rollout.worker import RolloutWorker, WorkerParts

from .conftest import NEW_TOKENS, until

EVALUATION = TaskKind.TASK_KIND_EVALUATION


def task(version, indexes, kind=TaskKind.TASK_KIND_TRAIN, traceparent=""):
    groups = [GroupTask(index=index, row=index % 2, traceparent=traceparent) for index in indexes]
    return Task(task_id=f"{kind}.{version}.{indexes[0]}", kind=kind, version=version, groups=groups)


@pytest.fixture
def store(buffer, run_id):
    return GroupStore(buffer, run_id)


@pytest.fixture
async def queue(bus, run_id):
    queue = TaskQueue(bus, run_id)
    await queue.open()
    return queue


@pytest.fixture
async def table(fork_server, model_folder, prompts, row_file):
    tokenizer = await Tokenizer.open(fork_server, model_folder, PromptLimits(NEW_TOKENS), Deadlines(load=60, call=60))
    yield await PromptTable.open(tokenizer, row_file(prompts))
    await tokenizer.close()


@pytest.fixture
async def hints(bus, run_id):
    """What workers say."""
    said = []

    async def note(payload):
        said.append(GroupsSampled.FromString(payload))

    async with bus.subscribed(subjects.groups(run_id), note):
        await bus.client.flush()
        yield said


@pytest.fixture
def working(bus, objects, stub, run_id, tmp_path, engine, store, table, new_record):
    """A worker that serves the run inside the block."""

    @asynccontextmanager
    async def work(mode="fixed_lag", weights=objects, lease=None):
        versions = VersionLoader(bus, weights, stub, run_id, tmp_path)
        heartbeat = WorkerHeartbeat(bus, WorkerPresence(worker="worker-a", role="rollout", incarnation="1"))
        async with versions.followed():
            record = await new_record(mode)
            sampler = SingleTurnSampler(record, engine, PromptTables(table, table), heartbeat.presence)
            parts = WorkerParts(bus, store, engine, versions, sampler, heartbeat, run_metrics(run_id), lease)
            worker = RolloutWorker(record, parts)
            async with background(worker.serve(), "worker"):
                worker.presence = heartbeat.presence
                yield worker

    return work


async def test_a_task_becomes_groups_in_the_buffer_and_then_a_hint(working, trainer, queue, store, hints, run_id):
    await trainer.publish(0)
    async with working():
        await queue.publish([task(0, [0, 3])])
        await until(lambda: hints)
        groups = await store.get([0, 3])
    assert (list(hints[0].indexes), hints[0].version, hints[0].worker) == ([0, 3], 0, "worker-a")
    assert [(group.index, group.row, group.prompt_text) for group in groups.values()] == [(0, 0, "abc"), (3, 1, "jihgf")]
    for index, group in groups.items():
        assert [sample.sample_id for sample in group.samples] == [f"{index}.{n}" for n in range(3)]
        assert [sample.seed for sample in group.samples] == [sample_seed(0, "train", index, n) for n in range(3)]
        for sample in group.samples:
            assert len(sample.token_ids) == len(sample.logprobs) == 4 * sample.spans[0].end
            assert [(span.start, span.version, span.trainable) for span in sample.spans] == [(0, 0, True)]
            assert np.all(np.frombuffer(sample.logprobs, "<f4") <= 0)


async def test_a_task_of_too_many_tokens_is_sampled_in_parts(working, trainer, queue, store, hints, monkeypatch):
    monkeypatch.setattr(worker_module, "_TASK_TOKENS", 1)
    await trainer.publish(0)
    async with working() as worker:
        await queue.publish([task(0, range(7)), task(0, [7])])
        await until(lambda: len(hints) == 8)
        assert sorted(await store.get(range(8))) == list(range(8))
        await until(lambda: worker.presence.claims == [])
    assert {len(hint.indexes) for hint in hints} == {1}


async def test_a_task_sent_twice_leaves_the_first_answer(working, trainer, queue, store, hints):
    await trainer.publish(0)
    async with working():
        await queue.publish([task(0, [1])])
        await until(lambda: hints)
        first = await store.get([1])
        await queue.publish([task(0, [1])])
        await until(lambda: len(hints) == 2)
        assert await store.get([1]) == first


async def test_a_task_of_a_version_to_come_is_set_aside_claimed_and_run_later(working, trainer, queue, store, hints):
    await trainer.publish(0)
    async with working() as worker:
        await queue.publish([task(1, [4]), task(0, [2])])
        await until(lambda: hints and worker.presence.claims == [4])
        assert list(hints[0].indexes) == [2]
        await trainer.publish(1)
        await until(lambda: len(hints) == 2)
        (group,) = (await store.get([4])).values()
        await until(lambda: worker.presence.claims == [])
    assert group.version == group.samples[0].spans[0].version == 1


class LentDevice:
    """The lease of a device that another worker wants at once, and keeps until `free` is set."""

    def __init__(self):
        self.free, self.is_away = asyncio.Event(), asyncio.Event()

    async def take(self):
        await self.free.wait()

    async def give_back(self):
        self.is_away.set()

    async def wanted(self, _):
        if self.is_away.is_set():
            await asyncio.Event().wait()


async def test_tasks_that_arrive_while_the_worker_waits_for_its_device_are_claimed(working, trainer, queue, hints):
    """Otherwise the conductor sends them again, and they are sampled twice."""
    device = LentDevice()
    await trainer.publish(0)
    async with working(lease=device) as worker:
        await asyncio.wait_for(device.is_away.wait(), 60)
        await queue.publish([task(0, [1])])
        await until(lambda: worker.presence.claims == [1])
        await queue.publish([task(0, [2])])
        await until(lambda: worker.presence.claims == [1, 2])
        assert not hints
        device.free.set()
        await until(lambda: len(hints) == 2)


async def test_held_out_rows_are_decoded_greedily_by_the_version_they_name(working, trainer, queue, store, hints):
    for step in range(2):
        await trainer.publish(step)
    async with working():
        await queue.publish([task(1, [0], EVALUATION), task(0, [0, 1], EVALUATION)])
        await until(lambda: len(hints) == 2)
        found = {version: await store.get_evaluation(version, [0, 1]) for version in (0, 1)}
    assert [sorted(rows) for rows in found.values()] == [[0, 1], [0]]
    assert all(len(group.samples) == 1 for rows in found.values() for group in rows.values())
    assert found[1][0].samples[0].spans[0].version == 1
    assert {hint.kind for hint in hints} == {EVALUATION}


async def test_a_task_whose_version_is_gone_is_abandoned_and_counted_and_others_go_on(working, trainer, queue, objects, hints):
    gone = await trainer.publish(0)
    await trainer.publish(1)
    await objects.delete_blob(gone.shards[0].digest)
    async with working() as worker:
        await queue.publish([task(0, [0, 1]), task(1, [2])])
        await until(lambda: hints and worker.abandoned == 2)
    assert list(hints[0].indexes) == [2]


async def test_a_download_that_came_damaged_is_tried_again_and_the_engine_goes_on(working, trainer, queue, objects, hints):
    published = await trainer.publish(0)
    bucket, digest = ObjectStore(MemoryStore(), "memory:///"), published.shards[0].digest
    content = await objects.get_blob(digest)
    await bucket.put(blob_path(digest), content[:-8])
    with capture_logs() as logs:
        async with working(weights=bucket):
            await queue.publish([task(0, [0])])
            await until(lambda: any(line["event"] == "load_failed" for line in logs))
            await bucket.put(blob_path(digest), content)
            await until(lambda: hints)
    assert list(hints[0].indexes) == [0]


async def test_in_free_training_takes_the_newest_version_and_evaluation_its_own(working, trainer, queue, store, hints):
    for step in range(3):
        await trainer.publish(step)
    async with working("free"):
        await queue.publish([task(0, [5]), task(1, [0], EVALUATION)])
        await until(lambda: len(hints) == 2)
        (group,) = (await store.get([5])).values()
        (held_out,) = (await store.get_evaluation(1, [0])).values()
    assert (group.version, group.samples[0].spans[-1].version) == (0, 2)
    assert [span.version for span in held_out.samples[0].spans] == [1]


async def test_other_bits_under_the_held_number_are_loaded(working, trainer, queue, hints):
    old = await trainer.publish(0)
    async with working() as worker:
        await queue.publish([task(0, [0])])
        await until(lambda: hints and worker.presence.digest == old.digest)
        new = await trainer.publish(0, seed=99, term=2)
        await queue.publish([task(0, [1])])
        await until(lambda: len(hints) == 2 or worker.presence.digest == new.digest)
        await queue.publish([task(0, [2])])
        await until(lambda: len(hints) == 3)
        assert worker.presence.digest == new.digest


async def test_two_workers_share_the_queue_and_lose_nothing(working, trainer, queue, store, hints, engine):
    await trainer.publish(0)
    async with working(), working():
        await queue.publish([task(0, [index]) for index in range(12)])
        await until(lambda: len(hints) == 12)
    assert sorted(await store.get(range(12))) == list(range(12))
    assert sorted(index for hint in hints for index in hint.indexes) == list(range(12)), "each task went to one of them"


async def test_a_buffer_that_refuses_is_waited_for(working, trainer, queue, store, hints, buffer):
    await trainer.publish(0)
    memory = (await buffer.config_get("maxmemory"))["maxmemory"]
    await buffer.config_set("maxmemory", 1)
    try:
        async with working() as worker:
            await queue.publish([task(0, [0])])
            await until(lambda: worker.presence.claims == [0])
            await asyncio.sleep(0.3)
            assert not hints
            await buffer.config_set("maxmemory", memory)
            await until(lambda: hints)
            assert list(await store.get([0])) == [0]
    finally:
        await buffer.config_set("maxmemory", memory)


async def test_the_trace_of_a_group_goes_on_from_its_task(working, trainer, queue, store, hints):
    await trainer.publish(0)
    async with working():
        await queue.publish([task(0, [0], traceparent=f"00-{0xABC:032x}-{0xDEF:016x}-01")])
        await until(lambda: hints)
    assert (await store.get([0]))[0].traceparent == f"00-{0xABC:032x}-{0xDEF:016x}-01"
