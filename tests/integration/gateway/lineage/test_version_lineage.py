"""The groups of a version's steps, from the archive and the buffer as from one log, and what judged them."""

import pytest

from gradbus.client import document
from gradbus.errors import ApiError
from gradbus.experience import ExperienceLog
from gradbus.experience.archive import ArchiveWriter
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import Sample, Span
from gradbus.v1.weights_pb2 import Frontier

TRAIN, FILTERED = Verdict.VERDICT_TRAIN, Verdict.VERDICT_FILTERED
SCHEDULES = {
    "fixed_lag": ({}, {0: [0, 1], 1: [2, 3], 2: [4, 5]}),
    "free": ({"mode": "free"}, {0: [1, 0], 1: [2, 3, 4], 2: [5]}),
    "dynamic": ({"dynamic_sampling": 3}, {0: [0, 1], 1: [2, 3, 4], 2: []}),
}
"""Changes of the schedule, and the groups of each step by the order and the verdicts of `logged`."""


def entry(index, verdict=TRAIN, judged=frozenset()):
    samples = [
        Sample(sample_id=f"{index}.{n}", n=n, spans=[Span(start=0, end=3, version=version, trainable=n < 2)])
        for n, version in enumerate((0, max(0, index // 2 - 1), 7))
    ]
    rewards = [
        SampleReward(sample_id=f"{index}.0", status=RewardStatus.REWARD_STATUS_OK, reward=1.0),
        SampleReward(sample_id=f"{index}.1", status=RewardStatus.REWARD_STATUS_OK, reward=0.0),
        SampleReward(sample_id=f"{index}.2", status=RewardStatus.REWARD_STATUS_INVALID, reason="cannot be judged"),
    ]
    if f"{index}.2" in judged:
        rewards[2] = SampleReward(sample_id=f"{index}.2", status=RewardStatus.REWARD_STATUS_OK, reward=8.0)
    group = Group(index=index, row=index % 2, prompt_text=f"prompt {index}", samples=samples)
    return LogEntry(index=index, verdict=verdict, reason="equal" * (verdict == FILTERED), group=group.SerializeToString(), rewards=rewards)


@pytest.fixture
async def logged(buffer, objects, set_state):
    """Six groups, the fourth of which was filtered; the second came first, and the first two are archived."""

    async def make(run, judged=frozenset()):
        log = ExperienceLog(buffer, run["id"])
        for index in (1, 0, 2, 3, 4, 5):
            await log.append(1, {index: entry(index, FILTERED if index == 3 else TRAIN, judged)})
        await ArchiveWriter(objects, log, run["id"]).advance(Frontier(below=2))
        await set_state(run["id"], "running", step=2)
        return run["id"]

    return make


@pytest.mark.parametrize(("schedule", "steps"), SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_every_group_of_a_versions_steps_comes_once_with_its_step(client, spec, tmp_path, logged, schedule, steps, limit):
    run_id = await logged(document(client.submit(spec | {"schedule": spec["schedule"] | schedule}, tmp_path)))
    found, after = [], 0
    while after is not None:
        page = document(client.version_lineage(run_id, 2, limit=limit, after=after))
        found += [(group["step"], group["index"]) for group in page["groups"]]
        after = page["next_after"]
    assert sorted(found) == sorted((step, index) for step in (0, 1) for index in steps[step])
    for step in range(2):
        groups = document(client.version_lineage(run_id, 2, step=step))["groups"]
        assert sorted(group["index"] for group in groups) == sorted(steps[step])
    assert document(client.version_lineage(run_id, 2, step=2))["groups"] == [], "step 2 makes version 3"
    assert document(client.version_lineage(run_id, 0))["groups"] == []


async def test_a_group_tells_its_prompt_its_samplers_and_its_verdict(client, submitted, logged):
    run_id = await logged(submitted)
    groups = {group["index"]: group for group in document(client.version_lineage(run_id, 2))["groups"]}
    assert {name: value for name, value in groups[3].items() if name != "digest"} == {
        "index": 3,
        "step": 1,
        "row_index": 1,
        "prompt": "prompt 3",
        "verdict": "filtered",
        "reason": "equal",
        "samples": 3,
        "reward": 0.5,
        "sampled_by": [0],
    }
    assert len({group["digest"] for group in groups.values()}) == 4


async def test_a_greedy_sample_is_no_part_of_its_groups_reward(client, spec, tmp_path, logged):
    remax = {"algorithm": {"name": "remax"}, "rollout": spec.get("rollout", {}) | {"group_size": 3}}
    run_id = await logged(document(client.submit(spec | remax, tmp_path)), {f"{n}.2" for n in range(6)})
    assert {group["reward"] for group in document(client.version_lineage(run_id, 2))["groups"]} == {0.5}


async def test_the_scorers_have_the_version_of_what_decides_their_rewards(client, spec, tmp_path, logged):
    shadow = {"other": {"grader": {"type": "regex", "pattern": "1"}}}
    reward = spec["reward"] | {"shadow": shadow}
    first, slower, other = (
        document(client.version_lineage(client.submit(spec | {"reward": reward | change}, tmp_path).id, 0))["scorers"]
        for change in ({}, {"timeout_seconds": 5.0}, {"grader": spec["reward"]["grader"] | {"operation": "ne"}})
    )
    assert [(one["section"], one["kind"], one["name"]) for one in first] == [
        ("reward", "grader", "string_check"),
        ("reward.shadow.other", "grader", "regex"),
    ]
    assert first == slower, "a deadline decides no reward"
    assert [one["version"] == same["version"] for one, same in zip(first, other, strict=True)] == [False, True]


async def test_a_version_that_there_is_not_is_refused_with_the_step_that_the_run_has(client, submitted, logged):
    run_id = await logged(submitted)
    assert document(client.version_lineage(run_id, 2))["digest"] is None, "trained, and not published"
    with pytest.raises(ApiError, match=r"is at step 2 and has no version 3; ask for an older one") as refused:
        client.version_lineage(run_id, 3)
    assert refused.value.status == 404
    for query in ({"step": -1}, {"after": -1}, {"limit": 0}, {"unknown": 1}):
        with pytest.raises(ApiError) as refused:
            client.version_lineage(run_id, 1, **query)
        assert refused.value.status == 422


async def test_the_groups_of_an_entry_that_cannot_be_read_are_left_out(client, submitted, logged, buffer):
    run_id = await logged(submitted)
    await buffer.xadd(f"{{{run_id}}}:experience", {"i": 6, "r": b"torn"})
    assert len(document(client.version_lineage(run_id, 2))["groups"]) == 4


async def test_pages_are_counted_in_entries_so_that_those_of_earlier_ones_need_not_be_parsed(client, submitted, buffer, set_state):
    log = ExperienceLog(buffer, submitted["id"])
    for index in range(6):
        await log.append(1, {index: LogEntry(index=index, verdict=TRAIN, group=b"torn") if index == 1 else entry(index)})
    await set_state(submitted["id"], "running", step=2)
    first = document(client.version_lineage(submitted["id"], 2, limit=2))
    assert ([group["index"] for group in first["groups"]], first["next_after"]) == ([0, 2], 3)
    second = document(client.version_lineage(submitted["id"], 2, limit=2, after=3))
    assert ([group["index"] for group in second["groups"]], second["next_after"]) == ([3], None)
