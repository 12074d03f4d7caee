"""Work of the trainer for each sample, group and step, held to the bounds of tests/work/work_bounds.py."""

import numpy as np
import pytest
from work_counters import OperatorCounter, PythonCounter, check, growth, least
from work_traffic import KINDS, CountedObjects, CountedStub, counted_traffic, kind

from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch, TrainSample

TOKENS = 5


def entry(index, samples):
    """A group whose samples differ in nothing but their content."""
    rng = np.random.default_rng(index)
    drawn = [
        Sample(
            sample_id=f"{index}.{n}",
            n=n,
            token_ids=rng.integers(1, 20, TOKENS).astype("<i4").tobytes(),
            logprobs=rng.normal(-3.0, 0.3, TOKENS).astype("<f4").tobytes(),
            spans=[Span(start=0, end=TOKENS, version=0, trainable=True)],
            finish_reason=FinishReason.FINISH_REASON_STOP,
        )
        for n in range(samples)
    ]
    rewards = [
        SampleReward(sample_id=one.sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=float(one.n % 2), components={"exact": 1.0})
        for one in drawn
    ]
    group = Group(index=index, prompt_ids=rng.integers(1, 20, 3).astype("<i4").tobytes(), samples=drawn)
    return LogEntry(index=index, verdict=Verdict.VERDICT_TRAIN, group=group.SerializeToString(), rewards=rewards)


@pytest.fixture
def logged(new_run, make_spec):
    """A run with all its groups in the log."""

    async def make(steps, groups, samples, every=100):
        schedule = {"mode": "fixed_lag", "max_staleness": 1, "groups_per_step": groups, "steps": steps}
        run = await new_run(make_spec(schedule=schedule, checkpoint={"every": every, "keep": 100}))
        await run.log.append(1, {index: entry(index, samples) for index in range(steps * groups)})
        return run

    return make


async def test_lines_and_calls_for_each_sample_and_group(logged):
    counter = PythonCounter()

    async def attempt(groups, samples):
        run = await logged(1, groups, samples)
        with counter.counting() as work:
            await run.train()
        return work.lines, work.calls

    with counter.tracing():
        base = await least(lambda: attempt(4, 4))
        samples = await least(lambda: attempt(4, 12))
        groups = await least(lambda: attempt(36, 4))
    for what, small, more_samples, more_groups in zip(("lines", "calls"), base, samples, groups, strict=True):
        check(f"trainer: {what} a sample", growth(small, more_samples, 32))
        check(f"trainer: {what} a group of four", growth(small, more_groups, 32))


def make_batch(samples):
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(4):
        prompt = rng.integers(1, 20, 3).astype(np.int32)
        for n in range(samples):
            tokens, logprobs = rng.integers(1, 20, TOKENS).astype(np.int32), rng.normal(-3.0, 0.3, TOKENS).astype(np.float32)
            rows.append(TrainSample(prompt, tokens, logprobs, np.ones(TOKENS, np.bool_), np.full(TOKENS, n % 2 - 0.5, np.float32)))
    return Batch(0, rows)


@pytest.fixture
def operators(make_spec, model_folder):
    """Counts of a step's operators."""

    def count(samples):
        learner = TorchLearner(model_folder, make_spec())
        with OperatorCounter() as counter:
            learner.train(make_batch(samples))
        return counter.counts

    return count


def test_operators_of_a_step(operators):
    check("trainer: operators a step of one layer", operators(4))


def test_operators_do_not_grow_with_the_samples(operators):
    check("trainer: operators a sample", growth(operators(4), operators(12), 32))


async def test_traffic_of_a_step_with_a_checkpoint_at_every_second(logged, buffer):
    async def attempt(steps):
        run = await logged(steps, 2, 4, every=2)
        async with counted_traffic(buffer) as counts:
            run.stub, run.objects = CountedStub(run.stub, counts), CountedObjects(run.objects, counts)
            await run.train()
        return [counts]

    (base,), (longer,) = await least(lambda: attempt(4)), await least(lambda: attempt(12))
    for name in (*KINDS, "bytes"):
        check(f"trainer: {name} a step", growth(kind(base, name), kind(longer, name), 8))
