"""A replay ends in the digests of the run, for every way in which a log becomes steps and for every kind of state."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from gradbus.cli.__main__ import app
from gradbus.control.replay import ReplayResult
from gradbus.v1.group_pb2 import Verdict

from .conftest import until

LORA = {"algorithm": {"kl": 0.1}, "trainer": {"learning_rate": 1e-2, "lora": {"rank": 2}}}
CONTROLLED = {**LORA, "algorithm": {"kl": 0.1, "kl_control": {"target": 1e-3, "horizon": 100}, "entropy_control": {"target": 2.9}}}
CRITIC = {"algorithm": {"name": "ppo"}, "trainer": {"learning_rate": 1e-2, "critic": {"learning_rate": 1e-2}, "dtype": "bf16"}}
CASES = {
    "fixed_lag": ("fixed_lag", {}, {1: Verdict.VERDICT_FILTERED, 6: Verdict.VERDICT_DROPPED}),
    "free": ("free", {}, {}),
    "adapters": ("fixed_lag", LORA, {}),
    "controllers": ("fixed_lag", CONTROLLED, {}),
    "critic-rounded": ("fixed_lag", CRITIC, {}),
    "deltas": ("fixed_lag", {"weights": {"transport": "delta", "dtype": "bf16"}}, {}),
}


@pytest.mark.parametrize(("mode", "sections", "verdicts"), CASES.values(), ids=CASES)
async def test_a_replay_ends_in_the_recorded_digests(archived, make_spec, mode, sections, verdicts):
    run = await archived(make_spec(mode, **sections), verdicts)
    found = await run.replay()
    assert (found.start, found.to, found.checkpoints) == (0, 6, [2, 4, 6])
    assert found.versions == list(range(7)), "the checkpoints pin the versions between them"
    assert [told.step for told in run.told] == list(range(1, 7))
    assert found.differences == []


async def test_filtered_groups_are_replaced_as_they_were(archived, make_spec):
    schedule = {"max_staleness": 1, "groups_per_step": 2, "steps": 4, "dynamic_sampling": 3}
    verdicts = dict.fromkeys((0, 2, 4, 5, 8), Verdict.VERDICT_FILTERED)
    run = await archived(make_spec(schedule=schedule), verdicts, range(13))
    assert (await run.replay()).checkpoints == [2, 4]


@pytest.mark.parametrize("sections", [{}, CRITIC], ids=["policy", "critic-rounded"])
async def test_a_replay_may_begin_at_a_checkpoint_and_end_at_any_recorded_version(archived, make_spec, sections):
    run = await archived(make_spec(**sections))
    found = await run.replay(start=2, to=5)
    assert (found.versions, found.checkpoints) == ([2, 3, 4, 5], [4])
    assert (await run.replay(to=0)).versions == [0], "nothing to train"


async def test_the_trainers_that_a_run_had_leave_no_trace_in_its_bits(archived, make_spec):
    async def killed(run):
        first = asyncio.create_task(run.train())

        async def committed():
            return await run.objects.list(f"runs/{run.run_id}/checkpoints")

        await until(committed)
        first.cancel()
        await asyncio.wait({first})
        await run.train()

    run = await archived(make_spec(), train=killed)
    found = await run.replay()
    assert (found.to, found.checkpoints[-1]) == (6, 6)


async def test_versions_that_retention_has_deleted_are_compared_too(archived, make_spec):
    run = await archived(make_spec(checkpoint={"every": 2, "keep": 1}))

    async def swept():
        return len(await run.objects.list(f"runs/{run.run.run_id}/checkpoints")) == 1

    await until(swept)
    found = await run.replay()
    assert (found.versions, found.checkpoints) == (list(range(7)), [6])


async def test_a_replay_from_a_bucket_finds_the_run_by_its_name_and_ends_in_the_same_digests(archived, make_spec, moto_server, monkeypatch):
    run = await archived(make_spec(**LORA))
    found, bucket = await run.replay(), moto_server.store(monkeypatch)
    for path in [*await run.objects.list("runs"), *await run.objects.list("blobs")]:
        await bucket.put(path, await run.objects.get(path))
    monkeypatch.setenv("GRADBUS_OBJECTS_CREDENTIALS", json.dumps(moto_server.credentials))
    monkeypatch.setenv("GRADBUS_CACHE_DIR", str(run.settings.cache_dir / "of-the-command"))
    answer = await asyncio.to_thread(CliRunner().invoke, app, ["replay", "test", "--objects", bucket.url, "--json"])
    assert answer.exit_code == 0, answer.exception
    assert ReplayResult.model_validate_json(answer.stdout) == found
