"""Work of the conductor for each sample, group and step, held to the bounds of tests/work/work_bounds.py."""

import asyncio
import dataclasses
from collections import Counter
from types import SimpleNamespace

import pytest
from work_counters import PythonCounter, check, growth, least
from work_traffic import CountedStub, counted_traffic, kind

from gradbus.bus import Buckets, EventLog, TaskQueue
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus_conductor.groups.pipeline import GroupPipeline, PipelineConfig
from gradbus_conductor.run.admission import GroupAdmission
from gradbus_conductor.run.learning_signal import LearningSignal
from gradbus_conductor.run.status import RunStatusWriter
from gradbus_conductor.schedules.of_run import schedule_for

pytestmark = pytest.mark.usefixtures("never_late")
TERM, STEPS = 1, 40
FINISHED = FinishReason.FINISH_REASON_STOP


class Conducted:
    """The way of a run's groups through the conductor, without what it does by the clock."""

    def __init__(self, clients, record, queue, runs):
        self.run_id = record.run_id
        self._store, self._log = GroupStore(clients.buffer, self.run_id), ExperienceLog(clients.buffer, self.run_id)
        self._schedule, self._wake = schedule_for(record.spec), asyncio.Event()
        self._size, self._samples = record.spec.schedule.groups_per_step, record.spec.rollout.group_size
        items = [f'{{"row": {row}}}' for row in range(self._size)]
        config = PipelineConfig(record, items, lambda index: index % self._size)
        self.pipeline = GroupPipeline(clients, config, queue, self._wake)
        status = RunStatusWriter(runs, EventLog(clients.bus, self.run_id), self.run_id, self._size)
        context = SimpleNamespace(record=record, status=status, lease=SimpleNamespace(term=TERM))
        self._admission = GroupAdmission(context, self._log, self._schedule, self.pipeline, LearningSignal(record.spec))
        self._version = -1

    async def open(self):
        await self._log.open_term(TERM)
        self._schedule.dispatchable(0)

    def _group(self, index):
        span = Span(start=0, end=3, version=self._version, trainable=True)
        samples = [
            Sample(sample_id=f"{index}.{n}", n=n, token_ids=bytes(12), logprobs=bytes(12), spans=[span], text="4", finish_reason=FINISHED)
            for n in range(self._samples)
        ]
        return Group(run_id=self.run_id, index=index, row=index % self._size, version=self._version, prompt_text="2+2=", samples=samples)

    async def sampled(self):
        """The trainer has published a version, and the workers have sampled the groups of a step."""
        self._version += 1
        self._indexes = range(self._version * self._size, (self._version + 1) * self._size)
        await self._store.put([self._group(index) for index in self._indexes])

    async def step(self):
        """From the new version's tasks to the log."""
        new = {item.index: item.version for item in self._schedule.dispatchable(self._version)}
        await self.pipeline.dispatch(new, 1)
        self.pipeline.report_sampled(self._indexes)
        await self.pipeline.collect(self._schedule.outstanding())
        while len(self.pipeline.judged) < self._size:
            await self._wake.wait()
            self._wake.clear()
        await self._admission.admit()
        assert self.pipeline.judged == {}
        assert not set(self._indexes) & set(self._schedule.outstanding())


@pytest.fixture
def conducted(clients, record, run_id):
    async def make(groups, samples, clients=clients):
        schedule = {"steps": STEPS, "groups_per_step": groups}
        body = record(schedule=schedule, rollout={"group_size": samples}).model_copy(update={"run_id": f"{run_id}-{groups}-{samples}"})
        queue = TaskQueue(clients.bus, body.run_id)
        await queue.open()
        one = Conducted(clients, body, queue, await clients.bus.bucket(Buckets.RUNS))
        await one.open()
        return one

    return make


async def test_lines_and_calls_for_each_sample_and_group(conducted):
    counter = PythonCounter()

    async def work(groups, samples):
        run = await conducted(groups, samples)

        async def step():
            await run.sampled()
            with counter.counting() as counted:
                await run.step()
            return counted.lines, counted.calls

        found = await least(step)
        await run.pipeline.close()
        return found

    with counter.tracing():
        base, samples, groups = await work(4, 4), await work(4, 12), await work(12, 4)
    for what, small, more_samples, more_groups in zip(("lines", "calls"), base, samples, groups, strict=True):
        check(f"conductor: {what} a sample", growth(small, more_samples, 32))
        check(f"conductor: {what} a group of four", growth(small, more_groups, 8))


async def test_traffic_of_a_step(conducted, clients):
    calls = Counter()
    run = await conducted(4, 4, dataclasses.replace(clients, reward=CountedStub(clients.reward, calls)))

    async def steps(count):
        calls.clear()
        asked = Counter()
        for _ in range(count):
            await run.sampled()
            async with counted_traffic(clients.buffer) as counts:
                await run.step()
            asked.update(counts)
        return [asked + calls]

    (base,), (more,) = await least(lambda: steps(2)), await least(lambda: steps(6))
    for name in ("messages", "commands", "calls"):
        check(f"conductor: {name} a step of four groups", growth(kind(base, name), kind(more, name), 4))
    await run.pipeline.close()
