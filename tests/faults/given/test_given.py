"""Runs on given responses: whoever dies in the middle, the weights and the log are those of an undisturbed run."""

import asyncio
import json
from typing import NamedTuple

import pytest
from ledger import check, read_ledger
from smoke import EXAMPLE, train

from gradbus.client import Client, document, load_spec
from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

ROWS, GROUPS, STEPS = 20, 8, 10
REFERRING = ("dpo", "kto")
POINTS = {
    "trainer-0": "mid-publish:2",
    "rollout-0": "mid-encode:2",
    "conductor": "after-append:2",
    "reference": "mid-answer:1",
}
"""Each process dies: before a version is published, before rows are written, after groups were logged, before an answer."""
KILLS = ("trainer-0", "rollout-0", "conductor", "weight_store", "buffer", "nats", "trainer-0", "rollout-0")


class Content(NamedTuple):
    """What a group trains, without who wrote it and its trace."""

    row: int
    prompt: tuple
    samples: list
    references: list
    rewards: list


@pytest.fixture(scope="session")
def given_spec(example, tmp_path_factory):
    """Makes a short run of a kind: four epochs of the first numbers of the copying example, backwards in the rejected responses."""
    rows = [json.loads(line) for line in (example / "train.jsonl").read_text().splitlines()[:ROWS]]
    data = tmp_path_factory.mktemp("data") / "given.jsonl"
    added = [{"rejected": row["answer"][::-1] + "0", "label": at % 3 > 0} for at, row in enumerate(rows)]
    data.write_text("".join(json.dumps(row | more) + "\n" for row, more in zip(rows, added, strict=True)))

    def make(kind, *, evaluated=False, **changes):
        columns = {"completion": "answer"} if kind in {"sft", "kto"} else {"chosen": "answer"}
        spec = {name: value for name, value in load_spec(EXAMPLE / "copy.toml").items() if name in {"name", "seed"}}
        return spec | {
            "kind": kind,
            "model": {"path": str(example / "model")},
            "data": {"train": str(data), **columns, **({"eval": str(data)} if evaluated else {})},
            "evaluation": {"every": 2, "samples": 12} if evaluated else {},
            "schedule": {"groups_per_step": GROUPS, "steps": STEPS},
            "trainer": {"learning_rate": 3e-3},
            "checkpoint": {"every": 2, "keep": 100},
            **changes,
        }

    return make


def faults_of(ledger, spec):
    """What is wrong with a run's log; every group has version 0."""
    size, steps = spec["schedule"]["groups_per_step"], spec["schedule"]["steps"]
    faults = check(ledger, size, steps, max_staleness=steps, fixed_lag=True)
    rows = [entry.row for _, entry in sorted(content(ledger).items())]
    for start in range(0, len(rows), ROWS):
        epoch = rows[start : start + ROWS]
        if len(set(epoch)) != len(epoch) or not set(epoch) <= set(range(ROWS)):
            faults.append(f"the epoch of index {start} has the rows {epoch}")
    return faults


def content(ledger):
    """By index, what was trained."""
    found = {}
    for index, entry in ledger.entries.items():
        assert entry.verdict == VERDICT_TRAIN
        group = Group.FromString(entry.group)
        found[index] = Content(
            group.row,
            (group.prompt_ids, group.prompt_text, group.version, entry.version),
            [sample.SerializeToString(deterministic=True) for sample in group.samples],
            list(entry.reference_logprobs),
            [reward.SerializeToString(deterministic=True) for reward in entry.rewards],
        )
    return found


def deadly(points, folder):
    """Environments in which each process dies once at its point."""
    for name in points:
        (folder / name).mkdir()
    return {name: {"GRADBUS_CRASH_POINT": point, "GRADBUS_CRASH_DIR": str(folder / name)} for name, point in points.items()}


def points_of(kind):
    return {name: point for name, point in POINTS.items() if kind in REFERRING or name != "reference"}


async def evaluations(stack, run_id):
    """The results on held-out rows, from the run's history."""
    with Client(stack.url, stack.api_key) as client:
        events = await asyncio.to_thread(lambda: list(map(document, client.events(run_id, 0))))
    return [event["data"] for event in events if event["type"] == "evaluation"]


async def assert_undisturbed(stack, outcome, spec):
    """A second run, whose processes have died before, ends in the same weights, log and held-out losses, each of which came once."""
    calm = await train(stack, spec)
    results = [await evaluations(stack, run.run_id) for run in (outcome, calm)]
    assert results[0] == results[1]
    if "eval" in spec["data"]:
        assert [found["version"] for found in results[0]] == list(range(0, spec["schedule"]["steps"] + 1, spec["evaluation"]["every"]))
        assert all(found["loss"] > 0.0 for found in results[0])
    ledgers = [read_ledger(stack.state.root, run.run_id) for run in (outcome, calm)]
    assert [faults_of(ledger, spec) for ledger in ledgers] == [[], []]
    assert (outcome.state, calm.state, outcome.digest) == ("succeeded", "succeeded", calm.digest)
    assert content(ledgers[0]) == content(ledgers[1])


@pytest.mark.slow  # rows go the way of samples, whose deaths are among the short tests
@pytest.mark.parametrize("kind", ["dpo", "sft", "kto", "reward_model"])
async def test_a_death_of_every_service_changes_neither_weights_nor_log(stack_of, given_spec, tmp_path, kind):
    points, spec = points_of(kind), given_spec(kind)
    async with stack_of(1, environment_overrides=deadly(points, tmp_path)) as stack:
        outcome = await train(stack, spec)
        for name, point in points.items():
            assert [marker.name for marker in (tmp_path / name).iterdir()] == [point.replace(":", "-")], f"{name} did not die at {point}"
        await assert_undisturbed(stack, outcome, spec)


@pytest.mark.slow  # those above die at the same points
async def test_a_death_of_every_service_changes_no_held_out_loss(stack_of, given_spec, tmp_path):
    points, spec = POINTS | {"conductor": "after-append:9", "reference": "mid-answer:3"}, given_spec("kto", evaluated=True)
    async with stack_of(1, environment_overrides=deadly(points, tmp_path)) as stack:
        outcome = await train(stack, spec)
        for name, point in points.items():
            assert [marker.name for marker in (tmp_path / name).iterdir()] == [point.replace(":", "-")], f"{name} did not die at {point}"
        await assert_undisturbed(stack, outcome, spec)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "trainer"), [("sft", {}), ("dpo", {}), ("kto", {}), ("reward_model", {}), ("dpo", {"lora": {"rank": 4}})])
async def test_kills_at_random_change_neither_weights_nor_log(stack_of, given_spec, kind, trainer):
    trainer = {"learning_rate": 3e-4, **trainer}
    spec = given_spec(kind, schedule={"groups_per_step": GROUPS, "steps": 400}, checkpoint={"every": 20, "keep": 100}, trainer=trainer)
    kills = (*KILLS, "reference") if kind in REFERRING and "lora" not in trainer else KILLS
    async with stack_of(2) as stack:
        outcome = await train(stack, spec, kills, seed=len(kind), after_step=5)
        assert tuple(outcome.killed) == kills
        await assert_undisturbed(stack, outcome, spec)
