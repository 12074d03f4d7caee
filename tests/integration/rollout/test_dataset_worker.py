"""The worker of runs on given responses, over a real queue and buffer: rows become groups as they are."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, TaskQueue, subjects
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.errors import DatasetError
from gradbus.experience import GroupStore
from gradbus.process import WorkerHeartbeat
from gradbus.spec import parse_spec
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer
from gradbus.v1.sample_pb2 import FINISH_REASON_STOP
from gradbus.v1.task_pb2 import GroupsSampled, GroupTask, Task, TaskKind
from gradbus_rollout.dataset_worker import DatasetWorker, DatasetWorkerParts
from gradbus_rollout.tasks import prompts as prompts_module
from gradbus_rollout.tasks.prompts import PromptTable

from .conftest import LETTERS, until

EOS, FIRST = 1, 3
PAIRS = [("abc", ["de", "f"]), ("jihgf", ["a", "bcd"]), ("a", ["b", "c"])]
LONG = "a" * 63
"""With the prompt and the stop token beyond the model's context of 64."""


def ids(text):
    return [FIRST + LETTERS.index(letter) for letter in text]


def task(*groups):
    given = [GroupTask(index=index, row=row, traceparent="trace") for index, row in groups]
    return Task(task_id=f"0.{groups[0][0]}", kind=TaskKind.TASK_KIND_TRAIN, version=0, groups=given)


def content(rows):
    """Rows of prompt, responses and, if they have one, a label."""
    names = ("prompt", "responses", "label")
    return b"".join(json.dumps(dict(zip(names, row, strict=False))).encode() + b"\n" for row in rows)


@pytest.fixture
def store(buffer, run_id):
    return GroupStore(buffer, run_id)


@pytest.fixture
async def queue(bus, run_id):
    queue = TaskQueue(bus, run_id)
    await queue.open()
    return queue


@pytest.fixture
async def tokenizer(fork_server, model_folder):
    tokenizer = await Tokenizer.open(fork_server, model_folder, PromptLimits(1), Deadlines(load=60, call=60))
    yield tokenizer
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
def worker_of(bus, store, tokenizer, run_id, row_file):
    """A worker of these rows; those with a label are of a run of kind `kto`."""

    async def make(rows, name="worker-a", held_out=()):
        body = {
            "name": "given",
            "kind": "dpo" if len(rows[0]) == 2 else "kto",
            "model": {"path": "m"},
            "data": {"train": "t"},
            "schedule": {"steps": 10},
        }
        record = RunRecord(run_id=run_id, spec=parse_spec(body), created_unix_ns=1)
        heartbeat = WorkerHeartbeat(bus, WorkerPresence(worker=name, role="rollout", incarnation="1"))
        table = await PromptTable.open(tokenizer, row_file(content(rows)))
        evaluation = await PromptTable.open(tokenizer, row_file(content(held_out))) if held_out else None
        worker = DatasetWorker(record, DatasetWorkerParts(bus, store, table, evaluation, heartbeat))
        worker.presence = heartbeat.presence
        return worker

    return make


@pytest.fixture
def working(worker_of):
    @asynccontextmanager
    async def work(rows=PAIRS, name="worker-a", held_out=()):
        worker = await worker_of(rows, name, held_out)
        async with background(worker.serve(), name):
            yield worker

    return work


async def test_a_row_becomes_a_group_whose_samples_are_its_responses_in_order(working, queue, store, hints, run_id):
    async with working() as worker:
        await queue.publish([task((0, 1), (7, 0))])
        await until(lambda: hints)
        await until(lambda: worker.presence.claims == [])
        groups = await store.get([0, 7])
    assert (list(hints[0].indexes), hints[0].version, hints[0].worker) == ([0, 7], 0, "worker-a")
    for index, row in ((0, 1), (7, 0)):
        group, (prompt, responses) = groups[index], PAIRS[row]
        assert (group.run_id, group.index, group.row, group.version) == (run_id, index, row, 0)
        assert (group.prompt_text, group.engine, group.worker, group.traceparent) == (prompt, "dataset", "worker-a", "trace")
        assert np.frombuffer(group.prompt_ids, "<i4").tolist() == ids(prompt)
        assert [(sample.sample_id, sample.n) for sample in group.samples] == [(f"{index}.0", 0), (f"{index}.1", 1)]
        for sample, text in zip(group.samples, responses, strict=True):
            assert np.frombuffer(sample.token_ids, "<i4").tolist() == [*ids(text), EOS]
            assert (sample.text, sample.finish_reason, sample.logprobs) == (text, FINISH_REASON_STOP, b"")
            assert [(span.start, span.end, span.version, span.trainable) for span in sample.spans] == [(0, len(text) + 1, 0, True)]
    assert worker.presence.engine == "dataset"


async def test_a_completion_is_a_group_of_one(working, queue, store, hints):
    async with working([("abc", ["de"])]):
        await queue.publish([task((0, 0))])
        await until(lambda: hints)
        [group] = (await store.get([0])).values()
    assert [(sample.n, sample.text) for sample in group.samples] == [(0, "de")]


async def test_a_labelled_response_has_that_of_the_next_row_beside_it_as_far_as_it_fits(working, queue, store, hints):
    rows = [("abc", ["de"], True), ("j" * 61, ["f"], False), ("a", ["bcdefg"], True)]
    async with working(rows):
        await queue.publish([task((0, 0), (1, 1), (2, 2))])
        await until(lambda: hints)
        groups = await store.get([0, 1, 2])
    for index, (text, undesirable, other) in enumerate([("de", False, "f"), ("f", True, "bcd"), ("bcdefg", False, "de")]):
        own, mismatched = groups[index].samples
        assert (own.n, own.text, own.undesirable) == (0, text, undesirable)
        assert (mismatched.n, mismatched.sample_id, mismatched.undesirable) == (1, f"{index}.1", False)
        stop = [] if index == 1 else [EOS]
        assert np.frombuffer(mismatched.token_ids, "<i4").tolist() == [*ids(other), *stop]
        assert [(span.start, span.end) for span in mismatched.spans] == [(0, len(other) + len(stop))]


async def test_responses_to_the_same_prompt_do_not_count_as_mismatched(working, queue, store, hints):
    """Pairs that were made into labelled rows are neighbours."""
    rows = [("abc", ["de"], True), ("abc", ["f"], False), ("a", ["b"], True), ("a", ["c"], False)]
    async with working(rows):
        await queue.publish([task(*((row, row) for row in range(4)))])
        await until(lambda: hints)
        groups = await store.get(range(4))
    assert [groups[row].samples[1].text for row in range(4)] == ["b", "b", "de", "de"]


async def test_held_out_rows_are_read_as_training_rows_are_and_stored_under_their_version(working, queue, store, hints, monkeypatch):
    free, put = asyncio.Event(), GroupStore.put_evaluation

    async def late(self, version, groups):
        await free.wait()
        await put(self, version, groups)

    monkeypatch.setattr(GroupStore, "put_evaluation", late)
    held_out = [("a", ["bcdefg"], True), ("abc", ["de"], False)]
    async with working([("j", ["a"], True)], held_out=held_out) as worker:
        given = [GroupTask(index=row, row=row) for row in range(2)]
        await queue.publish([Task(task_id="e", kind=TaskKind.TASK_KIND_EVALUATION, version=3, groups=given), task((7, 0))])
        await until(lambda: worker.presence.claims == [7])
        assert worker.presence.evaluation_claims == [(3, 0), (3, 1)]
        free.set()
        await until(lambda: len(hints) == 2 and worker.presence.evaluation_claims == [])
        groups = await store.get_evaluation(3, [0, 1])
        assert list(await store.get([0, 1, 7])) == [7]
    assert [(hint.kind, hint.version) for hint in hints] == [(TaskKind.TASK_KIND_EVALUATION, 3), (TaskKind.TASK_KIND_TRAIN, 0)]
    assert [[sample.text for sample in groups[row].samples] for row in (0, 1)] == [["bcdefg", "de"], ["de", "bcdefg"]]
    assert [groups[row].samples[0].undesirable for row in (0, 1)] == [False, True]
    assert {span.version for group in groups.values() for sample in group.samples for span in sample.spans} == {3}


async def test_the_only_row_is_its_own_neighbour(working, queue, store, hints):
    async with working([("abc", ["de"], True)]):
        await queue.publish([task((0, 0))])
        await until(lambda: hints)
        [group] = (await store.get([0])).values()
    assert [sample.text for sample in group.samples] == ["de", "de"]


async def test_a_fault_of_the_next_row_has_its_line(worker_of, queue, monkeypatch):
    monkeypatch.setattr(prompts_module, "_CHECKED_ROWS", 1)
    worker = await worker_of([("abc", ["de"], True), ("abc", [LONG], True)])
    await queue.publish([task((1, 0))])
    with pytest.raises(DatasetError, match="line 2 has 3 tokens of prompt"):
        await asyncio.wait_for(worker.serve(), 60)


async def test_a_task_sent_twice_leaves_the_first_answer(working, queue, store, hints):
    async with working():
        await queue.publish([task((0, 0))])
        await until(lambda: hints)
        first = await store.get([0])
        await queue.publish([task((0, 1))])
        await until(lambda: len(hints) == 2)
        assert await store.get([0]) == first


async def test_two_workers_share_the_queue_and_lose_nothing(working, queue, store, hints):
    async with working(), working(name="worker-b"):
        await queue.publish([task((index, index % 3)) for index in range(20)])
        await until(lambda: len(hints) == 20)
        assert sorted(await store.get(range(20))) == list(range(20))


async def test_tasks_are_claimed_from_their_arrival_until_the_buffer_has_them(working, queue, store, hints, monkeypatch):
    """Otherwise the conductor sends them again."""
    free, put = asyncio.Event(), GroupStore.put

    async def late(self, groups):
        await free.wait()
        await put(self, groups)

    monkeypatch.setattr(GroupStore, "put", late)
    async with working() as worker:
        await queue.publish([task((3, 0), (4, 1)), task((9, 2))])
        await until(lambda: {3, 4} <= set(worker.presence.claims))
        assert await store.get([3, 4, 9]) == {}
        assert not hints
        free.set()
        await until(lambda: len(hints) == 2 and worker.presence.claims == [])
        assert sorted(await store.get([3, 4, 9])) == [3, 4, 9]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (("a", ["b", LONG]), "line 4 has 1 tokens of prompt and 64 of response, 64 fit the model"),
        (("a", ["x", "y"]), "the responses of line 4 have the same tokens"),
        ((LONG + "aa", ["b", "c"]), "the prompt of line 4 has 65 tokens"),
    ],
    ids=["response", "equal", "prompt"],
)
async def test_a_row_that_cannot_be_trained_is_fatal_for_the_run_and_named_by_its_line(
    worker_of, queue, store, hints, monkeypatch, row, cause
):
    monkeypatch.setattr(prompts_module, "_CHECKED_ROWS", 1)  # as a row beyond those that are encoded at once
    worker = await worker_of([*PAIRS, row])
    await queue.publish([task((0, 0))])
    serving = asyncio.create_task(worker.serve())
    await until(lambda: hints)
    assert not worker.presence.fatal
    await queue.publish([task((1, 1), (2, 3))])
    with pytest.raises(DatasetError, match=cause):
        await asyncio.wait_for(serving, 60)
    assert worker.presence.fatal
    assert sorted(await store.get([0, 1, 2])) == [0], "no part of a task is written"


async def test_the_bucket_of_versions_is_not_asked(bus, working, queue, hints, run_id):
    """Version 0 is enough: there is none yet when the first rows are written."""
    async with working():
        await queue.publish([task((0, 0))])
        await until(lambda: hints)
        assert await (await bus.bucket(Buckets.HEADS)).get(f"{run_id}.version") is None
