"""What the status of a run without a learning signal says."""

import pytest

from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus_conductor.run.context import Ending
from gradbus_conductor.run.learning_signal import LearningSignal, ending_of

TRAIN, FILTERED, DROPPED = Verdict.VERDICT_TRAIN, Verdict.VERDICT_FILTERED, Verdict.VERDICT_DROPPED


def entry(verdict, reason="all 4 valid rewards are equal", invalid=""):
    status = RewardStatus.REWARD_STATUS_INVALID if invalid else RewardStatus.REWARD_STATUS_OK
    return LogEntry(verdict=verdict, reason=reason, rewards=[SampleReward(status=status, reason=invalid)])


def group_at(index, invalid, valid):
    """A group that is trained, with so many samples without a reward and with one."""
    broken = SampleReward(status=RewardStatus.REWARD_STATUS_INVALID, reason="the world broke")
    rewards = [broken] * invalid + [SampleReward(status=RewardStatus.REWARD_STATUS_OK, reward=1.0)] * valid
    return LogEntry(index=index, verdict=TRAIN, rewards=rewards)


@pytest.fixture
def learning_signal(make_spec):
    def make(mode="fixed_lag", size=4):
        return LearningSignal(make_spec(schedule={"mode": mode, "steps": 4, "groups_per_step": size}))

    return make


def test_a_steps_worth_of_filtered_groups_is_reported(learning_signal):
    found = learning_signal()
    for _ in range(3):
        found.add(entry(FILTERED))
    assert found.warning == ""
    found.add(entry(FILTERED))
    assert found.warning.startswith("none of the last 4 groups could be trained: all 4 valid rewards are equal; check the scorer")
    found.add(entry(TRAIN))
    assert found.warning == ""


def test_why_the_scorer_could_not_judge_comes_first(learning_signal):
    found = learning_signal(size=1)
    found.add(entry(FILTERED, "0 of 4 samples are valid; an advantage needs two", invalid="the grader broke"))
    assert "the grader broke" in found.warning


@pytest.mark.parametrize(
    ("most", "invalid", "fails"), [(None, 33, True), (None, 32, False), (0.25, 17, True), (0.25, 16, False), (1.0, 64, False)]
)
def test_a_run_fails_if_a_larger_share_of_its_episodes_than_allowed_has_no_reward(make_spec, most, invalid, fails):
    environment = {"service": "http://world:1/"} | ({} if most is None else {"max_masked": most})
    found = LearningSignal(make_spec(environment=environment, schedule={"steps": 40, "groups_per_step": 4}))
    found.add(group_at(64, 4, 0))
    found.clear()  # the log is read again
    for index in reversed(range(64)):  # in whatever order they come
        found.add(group_at(index + 64, int(index < invalid), int(index >= invalid)))
        assert not found.no_signal or index == 0
    assert found.no_signal is fails
    if fails:
        assert found.warning == (
            f"{invalid} of the 64 samples of 64 groups have no reward, more than environment.max_masked ({most or 0.5:g}) allows: "
            "the world broke; correct the environment"
        )


def test_a_run_without_an_environment_may_mask_most_of_its_samples(make_spec):
    found = LearningSignal(make_spec(schedule={"steps": 40, "groups_per_step": 4}))
    for index in range(128):
        found.add(group_at(index, 3, 1))
    assert not found.no_signal


def test_late_groups_say_nothing_about_the_data(learning_signal):
    found = learning_signal(size=2)
    for verdict in (FILTERED, DROPPED, DROPPED):
        found.add(entry(verdict, "end of run"))
    assert found.warning == ""


def test_a_run_that_finds_every_group_too_late_says_so(learning_signal):
    found = learning_signal("free", size=2)
    found.add(entry(DROPPED, "deadline"))
    assert found.warning == ""
    found.add(entry(DROPPED, "deadline"))
    assert found.warning.startswith("none of the last 2 groups was ready in time; raise schedule.group_deadline_seconds")
    assert not found.no_signal, "it may be a scorer that is away"
    found.add(entry(TRAIN))
    assert found.warning == ""


@pytest.mark.parametrize(
    ("mode", "size", "has_trained", "groups"),
    [
        ("free", 4, False, 256),
        ("free", 4, True, 1024),
        ("free", 512, False, 4096),
        ("free", 512, True, 4096),
        ("fixed_lag", 4, False, None),
    ],
)
def test_a_free_run_that_fills_its_log_without_a_step_has_no_signal(learning_signal, mode, size, has_trained, groups):
    found = learning_signal(mode, size)
    found.clear(has_trained=has_trained)
    for _ in range((groups or 10_000) - 1):
        found.add(entry(FILTERED))
    assert not found.no_signal
    found.add(entry(FILTERED))
    assert found.no_signal is (groups is not None)
    found.clear()
    assert not found.no_signal


def test_a_free_run_that_found_a_group_to_train_is_given_more_time(learning_signal):
    found = learning_signal("free")
    found.add(entry(TRAIN))
    for _ in range(1023):
        found.add(entry(FILTERED))
    assert not found.no_signal
    found.add(entry(FILTERED))
    assert found.no_signal


def test_a_run_whose_first_groups_have_no_scored_sample_has_no_signal_in_whatever_order_they_come(learning_signal):
    found = learning_signal(size=16)
    groups = [entry(FILTERED, invalid="the grader broke") for _ in range(200)]
    for index, one in enumerate(groups):
        one.index = index
    for one in reversed(groups[1:]):
        found.add(one)
    assert not found.no_signal, "group 0 may have a sample that is scored"
    found.add(groups[0])
    assert found.no_signal
    assert "the grader broke" in found.warning


def test_one_scored_sample_among_the_first_groups_is_enough(learning_signal):
    found = learning_signal(size=4)
    for index in range(1000):
        one = entry(FILTERED, invalid="" if index == 63 else "the grader broke")
        one.index = index
        found.add(one)
    assert not found.no_signal


class Archive:
    """The archived entries of a run that took all its steps."""

    def __init__(self, *stored):
        self._stored = stored

    async def entries(self):
        for one in self._stored:
            yield one


@pytest.mark.parametrize(
    ("verdict", "reason", "shown"),
    [
        (FILTERED, "all 4 valid rewards are equal", "all 4 valid rewards are equal"),
        (FILTERED, "1 of 4 samples are valid; an advantage needs two", "1 of 4 samples are valid; an advantage needs two"),
        (DROPPED, "deadline", "deadline"),
        (TRAIN, "", "it has no token to train"),
    ],
)
async def test_a_run_that_learned_nothing_names_a_judged_group_and_why_it_was_not_trained(verdict, reason, shown):
    judged = entry(verdict, reason)
    judged.index = 7
    archive = Archive(entry(FILTERED, "0 of 1 samples are valid", invalid="the grader broke"), judged)
    ending = await ending_of(archive, learned=False)
    assert ending.state == "succeeded"
    assert ending.reason.startswith(f"nothing was learned: no group could be trained, for example group 7: {shown}; check the scorer")
    assert await ending_of(archive, learned=True) == Ending("succeeded")


async def test_a_run_without_a_judged_sample_fails_with_the_scorers_error():
    ending = await ending_of(Archive(entry(FILTERED, "0 of 1 samples are valid", invalid="the grader broke")), learned=False)
    assert (ending.state, ending.reason.split(";")[0]) == ("failed", "no sample could be judged: the grader broke")


def taught():
    """A group that only a teacher would judge, of samples that were cut off."""
    return LogEntry(verdict=FILTERED, reason="0 of 4 samples are valid; an advantage needs one")


def test_groups_that_no_scorer_is_asked_about_do_not_end_a_run(learning_signal):
    found = learning_signal()
    for index in range(64):
        one = taught()
        one.index = index
        found.add(one)
    assert not found.no_signal
    assert found.warning.endswith('an advantage needs one; raise rollout.max_new_tokens, or set algorithm.truncated = "keep"')


async def test_a_run_of_such_groups_says_that_nothing_was_learned_and_what_to_raise():
    ending = await ending_of(Archive(taught()), learned=False)
    assert ending.state == "succeeded"
    assert "for example group 0: 0 of 4 samples are valid" in ending.reason
    assert "rollout.max_new_tokens" in ending.reason
