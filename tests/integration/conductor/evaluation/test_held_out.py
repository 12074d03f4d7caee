"""The held-out loss of a run on given responses: what is asked of the reference service, and results that come once."""

import asyncio
import dataclasses
from collections import Counter

import grpc
import numpy as np
import pytest

from gradbus.bus import Buckets, EventLog, TaskQueue
from gradbus.experience import GroupStore
from gradbus.formats.tokens import unpack_logprobs
from gradbus.v1.group_pb2 import Group
from gradbus.v1.weight_store_service_pb2 import GetVersionResponse
from gradbus.v1.weights_pb2 import Shard, WeightManifest
from gradbus_conductor.evaluation.evaluator import EvaluationConfig, Evaluator
from gradbus_conductor.groups.dataset import Dataset
from gradbus_conductor.groups.first_answers import FirstAnswers
from gradbus_conductor.groups.pipeline import GroupPipeline, PipelineConfig
from gradbus_conductor.groups.task_kinds import EvaluationTasks

pytestmark = pytest.mark.usefixtures("never_late")
FILES = ["sha256:a", "sha256:b"]
GIVEN = {"reward": {}, "rollout": {}, "data": {"train": "t", "eval": "e"}, "evaluation": {"every": 2}, "schedule": {"steps": 4}}


@pytest.fixture
async def queue(clients, run_id):
    queue = TaskQueue(clients.bus, run_id)
    await queue.open()
    yield queue
    await queue.remove()


@pytest.fixture
def judged(clients, record, run_id, queue, group):
    """Has groups of a kind judged by a version; the entries by index."""

    async def judge(kind, count=2, **sections):
        config = PipelineConfig(record(kind=kind, **GIVEN | sections), ["{}"] * count, lambda index: index, EvaluationTasks(0, FILES))
        pipeline, store = GroupPipeline(clients, config, queue, asyncio.Event()), GroupStore(clients.buffer, run_id)
        await store.put_evaluation(0, [group(index) for index in range(count)])
        pipeline.report_sampled(range(count))
        await pipeline.collect(dict.fromkeys(range(count), 0))
        try:
            async with asyncio.timeout(60):
                while len(pipeline.judged) < count:
                    await pipeline._wake.wait()
                    pipeline._wake.clear()
            return [pipeline.judged[index] for index in range(count)]
        finally:
            await pipeline.close()

    return judge


@pytest.mark.parametrize(
    ("kind", "sections", "calls"),
    [
        ("simpo", {}, [FILES]),
        ("sft", {}, [FILES]),
        ("dpo", {}, [FILES, []]),
        ("dpo", {"trainer": {"lora": {"rank": 2}}}, [FILES, []]),
        ("kto", {}, [FILES, []]),
    ],
)
async def test_the_version_gives_log_probabilities_and_the_base_model_those_that_the_loss_compares_with(
    judged, scorer, reference, kind, sections, calls
):
    entries = await judged(kind, **sections)
    assert reference.versions == calls
    assert scorer.asked == {}
    for entry in entries:
        for sample in Group.FromString(entry.group).samples:
            assert unpack_logprobs(sample.logprobs) == (0.0, 0.0, 0.0)
        assert [len(part) for part in entry.reference_logprobs] == ([12, 12] if [] in calls else [])


async def test_a_reward_model_is_asked_for_its_scores_and_nothing_else(judged, scorer, reference):
    entries = await judged("reward_model")
    assert scorer.versions == [FILES]
    assert reference.calls == []
    assert [[reward.reward for reward in entry.rewards] for entry in entries] == [[1.0, 0.0]] * 2


async def test_what_an_answer_lacks_is_asked_for_again_and_nothing_else_is(judged, reference):
    reference.short = 2
    await judged("dpo")
    calls = zip(reference.calls, reference.versions, strict=True)
    asked = Counter((sample, bool(files)) for samples, files in calls for sample in samples)
    by_version = {(f"{index}.{n}", True): 2 - index for index in range(2) for n in range(2)}
    by_base = {(f"{index}.{n}", False): 1 + index for index in range(2) for n in range(2)}
    assert asked == by_version | by_base


class Versions:
    """A weight store that answers as its list says; its last answer stays."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def GetVersion(self, request, timeout):  # noqa: N802
        self.asked.append(request.step)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, grpc.StatusCode):
            raise grpc.aio.AioRpcError(answer, grpc.aio.Metadata(), grpc.aio.Metadata())
        return GetVersionResponse(manifest=WeightManifest(shards=[Shard(digest=digest) for digest in answer]))


@pytest.fixture
async def evaluator_of(clients, record, run_id, queue):
    """An evaluator of two held-out rows, with a weight store; several take over from each other."""
    runs, opened = await clients.bus.bucket(Buckets.RUNS), []

    async def make(versions, kind="simpo"):
        run = record(kind=kind, **GIVEN)
        config = EvaluationConfig(run, Dataset(("{}", "{}"), ""), runs, EventLog(clients.bus, run_id), FirstAnswers())
        evaluator = Evaluator(dataclasses.replace(clients, weight_store=versions), config, queue, asyncio.Event())
        opened.append(evaluator)
        await evaluator.recover()
        return evaluator

    yield make
    for evaluator in opened:
        await evaluator.close()


async def evaluated(evaluator, store, group, version):
    """Passes of the conductor, until the version is evaluated; its rows are encoded."""
    rows = [group(index) for index in range(2)]
    for row in rows:
        row.version = version
    await store.put_evaluation(version, rows)
    evaluator.report_sampled(version, [0, 1])
    async with asyncio.timeout(60):
        while evaluator.running == version:
            await evaluator.advance(4, 0)
            await asyncio.sleep(0.01)


async def test_each_version_has_one_result_also_after_a_conductor_has_died(evaluator_of, clients, run_id, group, reference):
    store, versions = GroupStore(clients.buffer, run_id), Versions(FILES)
    first = await evaluator_of(versions)
    assert first.trainable_steps == 3, "retention deletes version 0 at a checkpoint of step 4"
    await first.advance(-1, 0)
    assert first.running is None, "version 0 is not published"
    await first.advance(0, 0)
    await evaluated(first, store, group, 0)
    assert (first.newest.version, first.newest.samples, first.trainable_steps) == (0, 2, 5)
    second = await evaluator_of(versions)
    assert (second.newest, second.due()) == (first.newest, 2)
    await second.advance(4, 0)
    await evaluated(second, store, group, 2)
    await second.advance(4, 0)
    await evaluated(second, store, group, 4)
    assert (second.due(), second.trainable_steps, versions.asked) == (None, None, [0, 2, 4])
    events = await EventLog(clients.bus, run_id).read()
    assert [event.data["version"] for event in events] == [0, 2, 4]
    assert [event.data["loss"] for event in events] == [pytest.approx(np.log1p(np.e), rel=1e-12)] * 3
    assert events[0].message == "version 0: loss 1.313, accuracy 0.500"
    assert await store.get_evaluation(4, [0, 1]) == {}


async def test_a_weight_store_that_is_away_is_asked_again_and_a_version_that_is_gone_is_skipped(evaluator_of, clients, run_id):
    evaluator = await evaluator_of(Versions(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OUT_OF_RANGE, FILES))
    for running in (None, None, 2):
        await evaluator.advance(2, 0)
        assert evaluator.running == running
    await evaluator._config.events.flush()
    [event] = await EventLog(clients.bus, run_id).read()
    assert (event.level, event.message) == ("warning", "version 0 was deleted before it could be evaluated")


async def test_a_loss_that_is_not_finite_is_a_warning_and_no_number(evaluator_of, clients, run_id, group, reference):
    reference.value = float("nan")
    evaluator = await evaluator_of(Versions(FILES), "sft")
    await evaluator.advance(0, 0)
    await evaluated(evaluator, GroupStore(clients.buffer, run_id), group, 0)
    [event] = await EventLog(clients.bus, run_id).read()
    assert (event.level, event.message, event.data["loss"]) == ("warning", "version 0: the loss is not finite", None)
    assert evaluator.newest.loss is None
