"""A run that a teacher judges: whoever dies in the middle, the weights and the log are those of an undisturbed run."""

import pytest
from ledger import check, read_ledger
from smoke import train

from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

STEPS, GROUPS = 16, 8
POINTS = {
    "trainer-0": "mid-publish:2",
    "rollout-0": "mid-decode:2",
    "conductor": "after-append:2",
    "reference": "mid-answer:2",
}
"""Each process dies: before a version is published, between two tokens, after groups were logged, before an answer."""
KILLS = ("trainer-0", "conductor", "reference", "rollout-0", "buffer", "weight_store", "nats", "trainer-0")


@pytest.fixture(scope="session")
def of_teacher(example):
    """A supervised run on the answers of the copying example."""
    return {
        "name": "teacher",
        "kind": "sft",
        "model": {"path": str(example / "model")},
        "data": {"train": str(example / "train.jsonl"), "completion": "answer"},
        "schedule": {"groups_per_step": 32, "steps": 20},
        "trainer": {"learning_rate": 3e-3},
        "checkpoint": {"every": 20},
    }


@pytest.fixture
def distilled(spec, example):
    """Makes a run whose teacher is a version of another; with the KL to its own base model in the loss."""

    def make(teacher, **changes):
        kept = {name: value for name, value in spec.items() if name not in {"reward", "evaluation"}}
        return kept | {
            "name": "student",
            "data": {"train": str(example / "train.jsonl")},
            "algorithm": {"name": "opd", "kl": 0.01},
            "teacher": {"run": teacher},
            "schedule": {"groups_per_step": GROUPS, "steps": STEPS},
            "checkpoint": {"every": 4, "keep": 100},
            **changes,
        }

    return make


def content(ledger):
    """By index, what was trained: samples, and what both frozen models say of them, bit for bit."""
    found = {}
    for index, entry in ledger.entries.items():
        assert (entry.verdict, list(entry.rewards)) == (VERDICT_TRAIN, [])
        samples = [(sample.token_ids, sample.logprobs) for sample in Group.FromString(entry.group).samples]
        rows = [(row.ids, row.logprobs) for row in entry.teacher_rows]
        found[index] = samples, list(entry.reference_logprobs), list(entry.teacher_logprobs), rows
    return found


async def assert_undisturbed(stack, outcome, spec):
    """A second run, whose processes have died before, ends in the same weights and has the same log."""
    calm = await train(stack, spec)
    schedule = spec["schedule"]
    ledgers = [read_ledger(stack.state.root, run.run_id) for run in (outcome, calm)]
    for ledger in ledgers:
        assert check(ledger, schedule["groups_per_step"], schedule["steps"], max_staleness=1, fixed_lag=True) == []
    assert (outcome.state, calm.state, outcome.digest) == ("succeeded", "succeeded", calm.digest)
    assert content(ledgers[0]) == content(ledgers[1])
    for _, reference, teacher, rows in content(ledgers[0]).values():
        with_rows = "top_k" in spec["teacher"]
        assert (len(reference), len(teacher), len(rows)) == ((0, 4, 4) if with_rows else (4, 4, 0))


@pytest.mark.slow  # a run on pairs dies at the same points in tests/faults/given
@pytest.mark.parametrize("with_rows", [False, True])
async def test_a_death_of_every_service_changes_neither_weights_nor_log(stack_of, of_teacher, distilled, tmp_path, with_rows):
    async with stack_of(1) as stack:
        teacher = await train(stack, of_teacher)
        for name, point in POINTS.items():
            (tmp_path / name).mkdir()
            stack.config.environment_overrides[name] = {"GRADBUS_CRASH_POINT": point, "GRADBUS_CRASH_DIR": str(tmp_path / name)}
        alive = [name for name in POINTS if name != "reference"]
        for name in alive:  # the reference service starts with its run
            await stack.kill(name)
        await stack.until_ready(alive, 300.0)
        spec = distilled(teacher.run_id)
        if with_rows:
            spec["algorithm"] = {"name": "opd", "importance": "none", "trust_region": "none"}
            spec["teacher"] |= {"top_k": 4}
        outcome = await train(stack, spec)
        for name, point in POINTS.items():
            assert [marker.name for marker in (tmp_path / name).iterdir()] == [point.replace(":", "-")], f"{name} did not die at {point}"
        await assert_undisturbed(stack, outcome, spec)


@pytest.mark.slow
async def test_kills_at_random_change_neither_weights_nor_log(stack_of, of_teacher, distilled):
    async with stack_of(2) as stack:
        teacher = await train(stack, of_teacher)
        schedule, checkpoint = {"groups_per_step": GROUPS, "steps": 200}, {"every": 20, "keep": 100}
        spec = distilled(teacher.run_id, schedule=schedule, checkpoint=checkpoint)
        outcome = await train(stack, spec, KILLS, seed=3, after_step=5)
        assert tuple(outcome.killed) == KILLS
        await assert_undisturbed(stack, outcome, spec)
