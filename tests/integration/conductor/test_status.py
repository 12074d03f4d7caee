"""The status and the history that a conductor writes, on a real NATS."""

import asyncio
import math

import pytest

from gradbus.algorithms import Algorithm
from gradbus.bus import Buckets, EventLog, OwnedKey
from gradbus.control.runs import RunStatus, WorkerPresence
from gradbus.errors import FencedError
from gradbus.spec import AlgorithmSpec
from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus_conductor.evaluation.results import HeldOutLoss
from gradbus_conductor.run.status import RunSnapshot, RunStatusWriter
from gradbus_conductor.runs.index import RunIndex

START = RunSnapshot(version=-1, checkpoint=-1)
GRPO = Algorithm(AlgorithmSpec(), 8)


@pytest.fixture
async def runs(bus):
    return await bus.bucket(Buckets.RUNS)


@pytest.fixture
def history(bus, run_id):
    return EventLog(bus, run_id)


@pytest.fixture
def writer(runs, history, run_id):
    return RunStatusWriter(runs, history, run_id, groups_per_step=2)


async def stored(runs, run_id):
    return RunStatus.model_validate_json((await runs.get(f"{run_id}.status")).value)


@pytest.fixture
def wrote(runs, writer, run_id):
    """Whether a write of the writer's reached the bucket. `rates`: their time has come."""

    async def write(state, snapshot, waiting_for="", *, rates):
        before = await runs.get(f"{run_id}.status")
        writer._rates_due = 0.0 if rates else math.inf
        await writer.write(state, snapshot, waiting_for)
        after = await runs.get(f"{run_id}.status")
        return before is None or after.revision > before.revision

    return write


def rollout(**fields):
    return WorkerPresence(worker="r", role="rollout", incarnation="1", **fields)


def entry(verdict, *rewards, index=0):
    ok = RewardStatus.REWARD_STATUS_OK
    return LogEntry(index=index, verdict=verdict, rewards=[SampleReward(status=ok, reward=reward) for reward in rewards])


async def test_a_new_state_is_written_at_once_and_becomes_one_event(runs, writer, history, run_id):
    await writer.write("running", START)
    await writer.write("waiting_for_reward", START, "the reward service: UNAVAILABLE")
    await writer.write("waiting_for_reward", START, "the reward service: UNAVAILABLE")
    assert (await stored(runs, run_id)).waiting_for == "the reward service: UNAVAILABLE"
    await history.wait_until_stored()
    events = await history.read()
    assert [(event.type, event.data["state"], event.level) for event in events] == [
        ("state", "running", "info"),
        ("state", "waiting_for_reward", "warning"),
    ]


NEWS = {
    "a version": RunSnapshot(version=4, checkpoint=2),
    "a step": RunSnapshot(version=3, checkpoint=2, step=4),
    "a checkpoint": RunSnapshot(version=3, checkpoint=3),
    "a worker": RunSnapshot(version=3, checkpoint=2, rollouts=[rollout()]),
    "a result": RunSnapshot(version=3, checkpoint=2, evaluation=HeldOutLoss(3, 8, 1.5, {})),
    "a warning": RunSnapshot(version=3, checkpoint=2, warning="nothing is trained"),
    "an alarm of the trainer": RunSnapshot(
        version=3, checkpoint=2, trainers=[WorkerPresence(worker="t", role="trainer", incarnation="1", warning="the entropy is 0")]
    ),
}


@pytest.mark.parametrize("news", NEWS)
async def test_news_is_written_at_once(wrote, news):
    assert await wrote("running", RunSnapshot(version=3, checkpoint=2), rates=False)
    assert await wrote("running", NEWS[news], rates=False)


async def test_a_wait_is_written_at_once_and_its_seconds_with_the_rates(wrote):
    assert await wrote("running", START, rates=False)
    assert await wrote("running", START, "a rollout worker; no progress for 10 s", rates=False)
    assert not await wrote("running", START, "a rollout worker; no progress for 11 s", rates=False)
    assert await wrote("running", START, "a rollout worker; no progress for 12 s", rates=True)
    assert await wrote("running", START, rates=False), "it waits no more"


async def test_rates_are_written_when_their_time_has_come(runs, writer, wrote, run_id):
    idle, busy = (RunSnapshot(version=3, checkpoint=2, rollouts=[rollout(busy=share)]) for share in (0.0, 1.0))
    assert await wrote("running", idle, rates=True)
    writer.count([entry(Verdict.VERDICT_FILTERED)], GRPO, 2)
    assert not await wrote("running", busy, rates=False)
    assert await wrote("running", busy, rates=True)
    progress = (await stored(runs, run_id)).progress
    assert (progress.shares["generate"], progress.filtered) == (1.0, 1)


async def test_of_a_run_that_stands_still_nothing_is_written(wrote):
    resting = RunSnapshot(version=3, checkpoint=2, rollouts=[rollout()])
    for _ in range(2):
        await wrote("paused", resting, rates=True)  # no tokens a second are known only from the second on
    assert not any([await wrote("paused", resting, rates=rates) for rates in (False, True) * 10])


async def test_a_state_is_written_also_after_another_that_only_its_driver_showed(runs, writer, wrote, run_id):
    await wrote("running", START, rates=False)
    await writer.transition("queued", "it left its trainer")
    assert await wrote("running", START, rates=False)
    assert (await stored(runs, run_id)).state == "running"


async def test_what_was_not_written_yet_is_written_the_next_time(writer, wrote, monkeypatch):
    async def die(_self, _value):
        raise ConnectionError("NATS is away")

    with monkeypatch.context() as patch:
        patch.setattr(OwnedKey, "write", die)
        with pytest.raises(ConnectionError):
            await writer.write("running", START)
    assert await wrote("running", START, rates=False)


async def test_the_final_status_has_the_newest_of_everything(runs, writer, wrote, run_id):
    await wrote("running", RunSnapshot(version=3, checkpoint=2, rollouts=[rollout(busy=0.0)]), rates=False)
    assert not await wrote("running", RunSnapshot(version=3, checkpoint=2, rollouts=[rollout(busy=1.0)]), rates=False)
    await writer.transition("succeeded")
    assert (await stored(runs, run_id)).progress.shares["generate"] == 1.0


async def test_a_state_that_is_over_is_exported_as_0(writer):
    for state in ("running", "waiting_for_reward", "running", "running"):
        await writer.write(state, START)
    exported = {one.attributes["gradbus.state"]: one.value for one in writer.metrics.read("gradbus.run.state")}
    assert exported == {"queued": 0, "running": 1, "waiting_for_reward": 0}


async def test_progress_counts_what_entered_the_log(runs, writer, run_id):
    train, filtered, dropped = Verdict.VERDICT_TRAIN, Verdict.VERDICT_FILTERED, Verdict.VERDICT_DROPPED
    writer.count([entry(train, 0.0, 0.0), entry(train, 1.0, 0.0, index=1), entry(filtered, 1.0, 1.0, index=2), entry(dropped)], GRPO, 2)
    await writer.write("running", RunSnapshot(version=3, checkpoint=2))
    progress = (await stored(runs, run_id)).progress
    assert (progress.filtered, progress.dropped, progress.version, progress.checkpoint_step) == (1, 1, 3, 2)
    assert progress.reward == 0.75  # the newest two groups


async def test_the_reward_is_of_the_last_groups_by_index_whatever_the_order_in_which_they_came(runs, writer, run_id):
    for index, reward in ((3, 0.5), (2, 1.0), (0, 0.0), (1, 0.25)):
        writer.count([entry(Verdict.VERDICT_TRAIN, reward, index=index)], GRPO, 1)
    await writer.write("running", START)
    assert (await stored(runs, run_id)).progress.reward == 0.75


async def test_the_mean_reward_is_that_of_the_samples_that_are_no_baseline(runs, writer, run_id):
    of_group = entry(Verdict.VERDICT_TRAIN, 0.5, 0.25, 1.0)
    of_group.index = 7
    for n, reward in enumerate(of_group.rewards):
        reward.sample_id = f"7.{n}"
    writer.count([of_group], Algorithm(AlgorithmSpec(name="remax"), 8), 3)
    await writer.write("running", START)
    assert (await stored(runs, run_id)).progress.reward == 0.375


async def test_what_the_trainer_says_of_the_learning_is_in_the_status(runs, writer, run_id):
    learned = {"explained_variance": 0.25, "loss": 0.5, "pair_accuracy": 0.75, "teacher_kl": 0.125}
    trainer = WorkerPresence(worker="t", role="trainer", incarnation="1", warning="step 7: the entropy is 0", **learned)
    await writer.write("running", RunSnapshot(version=8, checkpoint=-1, trainers=[trainer]))
    status = await stored(runs, run_id)
    progress = status.progress
    assert (progress.explained_variance, progress.loss, progress.pair_accuracy, progress.teacher_kl) == (0.25, 0.5, 0.75, 0.125)
    assert status.reason == "step 7: the entropy is 0"
    await writer.write("evaluating", RunSnapshot(version=8, checkpoint=-1, warning="nothing is trained", trainers=[trainer]))
    assert (await stored(runs, run_id)).reason == "nothing is trained"
    await writer.write("running", RunSnapshot(version=8, checkpoint=-1, trainers=[trainer.model_copy(update={"warning": ""})]))
    assert (await stored(runs, run_id)).reason == "", "as soon as the alarm is over"


async def test_the_history_ends_before_the_status_says_so(runs, writer, history, run_id):
    writer.events.emit("metrics", "the last step")
    await writer.transition("failed", "the loss is not finite; lower the learning rate")
    status = await stored(runs, run_id)
    assert (status.state, status.reason) == ("failed", "the loss is not finite; lower the learning rate")
    assert status.finished_unix_ns > 0
    assert [event.type for event in await history.read()] == ["metrics", "state"]
    assert (await history.read())[1].level == "error"


async def test_the_next_conductor_goes_on_counting(runs, writer, history, run_id):
    writer.begin("sha256:p", "")
    writer.count([entry(Verdict.VERDICT_FILTERED)], GRPO, 2)
    await writer.write("running", START)
    second = RunStatusWriter(runs, history, run_id, groups_per_step=2)
    assert (await second.recover()).state == "running"
    second.count([entry(Verdict.VERDICT_FILTERED)], GRPO, 2)
    await second.write("paused", START)
    status = await stored(runs, run_id)
    assert (status.progress.filtered, status.prompts, second.paused) == (2, "sha256:p", True)


async def test_a_conductor_that_was_replaced_overwrites_no_status(runs, writer, history, run_id):
    await writer.write("running", START)
    second = RunStatusWriter(runs, history, run_id, groups_per_step=2)
    await second.recover()
    await second.transition("succeeded")
    with pytest.raises(FencedError, match="another process wrote"):
        await writer.write("evaluating", START)
    assert (await stored(runs, run_id)).state == "succeeded"


async def test_an_ending_once_decided_stays(runs, writer, history, run_id):
    await writer.transition("running", "the loss is not finite", ending="failed")
    await writer.transition("running", "the loss is not finite", "the weight store")
    status = await RunStatusWriter(runs, history, run_id, groups_per_step=2).recover()
    assert (status.state, status.ending, status.waiting_for) == ("running", "failed", "the weight store")


async def test_a_run_without_a_requested_state_runs(runs, run_id):
    async with runs.view(f"{run_id}.*") as view:
        index = RunIndex(view)
        assert index.desired(run_id) == "running"
        await runs.put(f"{run_id}.desired", b'"cancelled"')
        async with asyncio.timeout(60):
            while index.desired(run_id) != "cancelled":
                await view.changed.wait()
                view.changed.clear()


async def test_a_conductor_that_dies_before_the_final_status_leaves_one_last_event(runs, writer, history, run_id, monkeypatch):
    await writer.write("running", START)

    async def die(_self, _value):
        raise ConnectionError("the conductor dies here")

    with monkeypatch.context() as patch:
        patch.setattr(OwnedKey, "write", die)
        with pytest.raises(ConnectionError):
            await writer.transition("succeeded")
    second = RunStatusWriter(runs, EventLog(history._bus, run_id), run_id, groups_per_step=2)
    assert (await second.recover()).state == "running"
    await second.transition("succeeded")
    assert [event.data["state"] for event in await history.read()] == ["running", "succeeded"]
