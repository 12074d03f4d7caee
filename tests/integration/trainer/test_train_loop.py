"""The train loop over a log in a real buffer, with a real weight store and a tiny model."""

import asyncio
import errno
import itertools
import os

import numpy as np
import pytest
from family_lab import save
from transformers_lab import make_transformers_model

from gradbus.algorithms import Observed, after_step, step_coefficients
from gradbus.bus import EventLog, events
from gradbus.errors import FencedError
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.group_pb2 import Group, Verdict
from gradbus.v1.weights_pb2 import Origin
from gradbus_trainer.tensors import scratch
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.store_client import StoreClient

from .conftest import make_entry, until

DELTAS = {"transport": "delta", "dtype": "bf16"}


async def version(run, step):
    return (await run.stub.GetVersion(pb.GetVersionRequest(run_id=run.run_id, step=step))).manifest


async def heads(run):
    return (await run.stub.GetHeads(pb.GetHeadsRequest(run_id=run.run_id))).heads


async def checkpoint(run):
    return (await run.stub.GetCheckpoint(pb.GetCheckpointRequest(run_id=run.run_id))).manifest


async def reached(run, step):
    async def is_committed():
        return (await heads(run)).checkpoint_step >= step

    await until(is_committed)


async def committed_steps(run):
    paths = await run.objects.list(f"runs/{run.run_id}/checkpoints")
    return sorted(int(path.rpartition("/")[2].split("-")[0]) for path in paths)


async def test_a_run_ends_with_every_step_published_and_the_last_one_committed(new_run, make_spec):
    run = await new_run(make_spec())
    await run.write(range(12))
    await run.train()
    manifest = await checkpoint(run)
    assert (manifest.step, manifest.frontier.below, list(manifest.frontier.above)) == (6, 12, [])
    assert [one.step for one in manifest.pinned] == [5, 6], "a resume samples again with these"
    assert sorted(manifest.trained) == [8, 9, 10, 11], "since the checkpoint before"
    assert await committed_steps(run) == [2, 4, 6]
    assert len({(await version(run, step)).digest for step in range(1, 7)}) == 6, "each kept by the checkpoint that pins it"
    assert manifest.weights == await version(run, 6)


async def test_the_checkpoints_of_a_run_that_started_from_another_name_its_version(new_run, make_spec):
    parent = {"run": "run-parent", "name": "parent", "version": 3, "digest": f"sha256:{'a' * 64}"}
    started = make_spec(model={"run": "run-parent", "version": 3, "lineage": {"base": "b", "ancestors": [parent]}})
    manifests = []
    for spec in (started, make_spec()):
        run = await new_run(spec)
        await run.write(range(12))
        await run.train()
        manifests.append(await checkpoint(run))
    assert manifests[0].origin == Origin(run_id="run-parent", step=3, digest=parent["digest"])
    assert not manifests[1].HasField("origin")


ADAPTERS = {"algorithm": {"kl": 0.1}, "trainer": {"learning_rate": 1e-2, "lora": {"rank": 2}}}
PPO = {"algorithm": {"name": "ppo"}, "trainer": {"learning_rate": 1e-2, "critic": {"learning_rate": 1e-2, "updates": 2}}}
CONTROLLED = {"kl": 0.1, "kl_control": {"target": 1e-3, "horizon": 100}, "entropy_control": {"target": 2.9}}
WARMING_UP = {"algorithm": {"name": "ppo"}, "trainer": {"critic": {"kind": "head", "warmup_steps": 4}}}
CASES = {
    "fixed_lag": ("fixed_lag", {}),
    "free": ("free", {}),
    "deltas": ("fixed_lag", {"weights": DELTAS}),
    "adapters": ("fixed_lag", ADAPTERS),
    "updates": ("fixed_lag", {"trainer": {"learning_rate": 1e-2, "inner": {"epochs": 2, "minibatches": 2}}}),
    "updates-that-end": ("fixed_lag", {"trainer": {"learning_rate": 1e-2, "inner": {"epochs": 4, "stop_kl": 1e-2}}}),
    "adapters-deltas": ("fixed_lag", {**ADAPTERS, "weights": DELTAS}),
    "critic": ("fixed_lag", PPO),
    "critic-warming-up": ("fixed_lag", WARMING_UP),
    "controllers": ("fixed_lag", {**ADAPTERS, "algorithm": CONTROLLED}),
    "critic-beside-adapters": ("free", {**PPO, "trainer": {**PPO["trainer"], "lora": {"rank": 2}}}),
    "critic-rounded": ("fixed_lag", {**PPO, "trainer": {**PPO["trainer"], "dtype": "bf16"}}),
}


@pytest.mark.parametrize(("mode", "sections"), CASES.values(), ids=CASES)
async def test_a_killed_train_loop_comes_back_to_the_same_bits(new_run, make_spec, mode, sections):
    whole, killed = [await new_run(make_spec(mode, **sections)) for _ in range(2)]
    await whole.write(range(12))
    await whole.train()
    await killed.write(range(7))  # it has to stop in the middle of a step's groups
    first = asyncio.create_task(killed.train())
    await reached(killed, 2)
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    await killed.write(range(7, 12))
    await killed.train()
    ends = [await checkpoint(run) for run in (whole, killed)]
    assert ends[0].weights.digest == ends[1].weights.digest
    assert ends[0].frontier == ends[1].frontier, "the same groups in the same steps: the chain says so"
    assert [shard.digest for shard in ends[0].optimizer] == [shard.digest for shard in ends[1].optimizer]
    assert ends[0].controllers == ends[1].controllers


async def metrics_of(run):
    steps = {event.data["step"]: event.data for event in await EventLog(run.bus, run.run_id).read() if event.type == "metrics"}
    return [steps[step] for step in sorted(steps)]


REFERRED = {"algorithm": {"name": "reinforce_pp", "kl": 0.1, "kl_control": {"target": 0.01, "horizon": 100}}}


@pytest.mark.parametrize("sections", [{**ADAPTERS, "algorithm": CONTROLLED}, REFERRED], ids=["loss", "reward"])
async def test_coefficients_follow_what_the_steps_before_have_observed(new_run, make_spec, sections):
    """From the metrics alone, across a trainer's end after the checkpoint of step 4."""
    run = await new_run(make_spec(**sections))
    await run.write(range(9), reference=True)
    first = asyncio.create_task(run.train())
    await reached(run, 4)
    first.cancel()
    await asyncio.wait({first})
    at_checkpoint = dict((await checkpoint(run)).controllers)
    await run.write(range(9, 12), reference=True)
    await run.train()
    spec, state = run.record.spec.algorithm, {}
    for step, data in enumerate(await metrics_of(run)):
        if step == 4:
            assert state == at_checkpoint
        expected = step_coefficients(spec, state)
        assert data["kl_coefficient"] == expected.kl
        assert not spec.entropy_control or data["entropy_coefficient"] == expected.entropy
        state = after_step(spec, state, Observed(data["kl"], data["entropy"], run.record.spec.samples_per_step))
    assert state == dict((await checkpoint(run)).controllers)
    assert len({data["kl_coefficient"] for data in await metrics_of(run)}) == 6


async def test_so_does_one_whose_filtered_groups_are_replaced(new_run, make_spec):
    schedule = {"max_staleness": 1, "groups_per_step": 2, "steps": 4, "dynamic_sampling": 3}
    verdicts = dict.fromkeys((0, 2, 4, 5, 8), Verdict.VERDICT_FILTERED)
    ends = []
    for parts in ([range(13)], [range(9), range(9, 13)]):
        run = await new_run(make_spec(schedule=schedule))
        for part in parts:
            await run.write(part, verdicts)
            training = asyncio.create_task(run.train())
            await reached(run, 2 if part.stop < 13 else 4)
            training.cancel()
            await asyncio.wait({training})
        ends.append(await checkpoint(run))
    assert ends[0].weights.digest == ends[1].weights.digest
    assert ends[0].frontier == ends[1].frontier
    assert (ends[0].frontier.below, list(ends[0].frontier.extents)) == (13, [13])


@pytest.mark.parametrize("model_type", ["deepseek_v3", "nemotron_h"])
async def test_so_does_one_over_a_model_that_transformers_computes(new_run, make_spec, tmp_path, model_type):
    folder = save(make_transformers_model(model_type), tmp_path / "model")
    ends = []
    for parts in ([range(12)], [range(7), range(7, 12)]):
        run = await new_run(make_spec(weights=DELTAS))
        run.model_folder = folder
        for part in parts:
            await run.write(part)
            training = asyncio.create_task(run.train())
            await reached(run, 2 if part.stop < 12 else 6)
            training.cancel()
            await asyncio.wait({training})
        ends.append(await checkpoint(run))
    assert ends[0].weights.digest == ends[1].weights.digest
    assert [shard.digest for shard in ends[0].optimizer] == [shard.digest for shard in ends[1].optimizer]


async def test_the_order_of_the_log_does_not_matter_in_fixed_lag(new_run, make_spec):
    forward, backward = await new_run(make_spec()), await new_run(make_spec())
    await forward.write(range(12))
    await backward.write(reversed(range(12)))
    for run in (forward, backward):
        await run.train()
    assert (await checkpoint(forward)).weights.digest == (await checkpoint(backward)).weights.digest


@pytest.mark.parametrize("sections", [{}, ADAPTERS], ids=["whole", "adapters"])
async def test_a_step_without_weight_is_a_noop_version_with_the_same_digest(new_run, make_spec, sections):
    run = await new_run(make_spec(steps=3, **sections))
    await run.write(range(6), {2: Verdict.VERDICT_FILTERED, 3: Verdict.VERDICT_FILTERED})
    await run.train()
    before, after, last = [await version(run, step) for step in (1, 2, 3)]
    assert (before.noop, after.noop, last.noop) == (False, True, False)
    assert before.digest == after.digest != last.digest
    assert (await checkpoint(run)).frontier.below == 6, "filtered groups are through as well"


@pytest.mark.parametrize("weights", [{}, DELTAS], ids=["store", "delta"])
async def test_log_bytes_force_a_checkpoint_before_its_step(new_run, make_spec, weights):
    run = await new_run(make_spec(weights=weights, checkpoint={"every": 100, "keep": 100}), checkpoint_bytes=1)
    await run.write(range(12))
    await run.train()
    assert await committed_steps(run) == [1, 2, 3, 4, 5, 6]


async def test_the_history_of_a_step_is_stored_before_its_checkpoint(new_run, make_spec, monkeypatch):
    run = await new_run(make_spec(steps=2))
    await run.write(range(4))
    recorded = {}

    async def commit_and_look(store, manifest):
        recorded[manifest.step] = [event.data["step"] for event in await EventLog(run.bus, run.run_id).read() if event.type == "metrics"]
        return await commit(store, manifest)

    commit = StoreClient.commit
    monkeypatch.setattr(StoreClient, "commit", commit_and_look)
    monkeypatch.setattr(events, "_FLUSH_SECONDS", 60.0)
    await run.train()
    assert recorded == {2: [0, 1]}, "a trainer killed now would not train these steps again"


@pytest.mark.parametrize("weights", [{}, DELTAS], ids=["store", "delta"])
async def test_no_file_outlives_its_use(new_run, make_spec, weights):
    run = await new_run(make_spec(weights=weights))
    await run.write(range(12))
    exports, paths, left = [], {}, []

    async def look(publisher, export, whole=False, probe=None):
        exports.append(export)  # a reference, such as a traceback holds, keeps no file
        paths[export.step] = export.file.path
        left.extend(step for step, path in paths.items() if step < export.step - 2 and path.exists())
        return await publish(publisher, export, whole, probe)

    publish = Publisher.publish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publisher, "publish", look)
        await run.train()
    assert len(paths) == 7
    assert left == [], "the version before is on its way, and the one before that may be a delta's base"
    assert list(run.scratch.new().parent.iterdir()) == []


async def test_a_full_disk_is_waited_for_and_reported_and_costs_no_bit(new_run, make_spec, monkeypatch):
    full, undisturbed = await new_run(make_spec()), await new_run(make_spec())
    for run in (full, undisturbed):
        await run.write(range(12))
    await undisturbed.train()
    room = itertools.cycle([False, True])

    def write_or_not(*given):
        if not next(room):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*given)

    write = scratch.write_safetensors
    monkeypatch.setattr(scratch, "write_safetensors", write_or_not)
    await full.train()
    ends = [await checkpoint(run) for run in (full, undisturbed)]
    assert ends[0].weights.digest == ends[1].weights.digest
    assert [shard.digest for shard in ends[0].optimizer] == [shard.digest for shard in ends[1].optimizer]
    alarms = [event.message for event in await EventLog(full.bus, full.run_id).read() if event.type == "alarm"]
    assert any(text.startswith("version 3 waits: cannot write") for text in alarms), alarms
    assert any(text.startswith("checkpoint 4 waits: cannot write") and "No space left" in text for text in alarms), alarms


async def test_a_reward_that_collapses_is_one_alarm_in_the_history_and_in_the_heartbeat(new_run, make_spec):
    run = await new_run(make_spec(steps=60, rollout={"group_size": 4}, checkpoint={"every": 100}))
    entries = {index: make_entry(index) for index in range(120)}
    for index in range(60, 120):
        for reward in entries[index].rewards:
            reward.reward *= 0.1
    await run.log.append(1, entries)
    await run.train()
    alarms = [event for event in await EventLog(run.bus, run.run_id).read() if event.type == "alarm"]
    (alarm,) = [event for event in alarms if event.data["kind"] == "reward_collapse"]
    assert alarm.level == "warning"
    assert 39 <= alarm.data["step"] <= 55
    assert "the mean reward fell from 1.25 to" in alarm.message
    assert "trainer.learning_rate (0.01)" in alarm.message
    assert alarm.message == run.heartbeat.presence.warning
    assert {one.attributes["gradbus.alarm"]: one.value for one in run.metrics.read("gradbus.alarms")}["reward_collapse"] == 1


async def test_a_finished_run_taken_up_again_trains_nothing(new_run, make_spec):
    run = await new_run(make_spec())
    await run.write(range(12))
    await run.train()
    before = await checkpoint(run)
    await run.train()
    assert await checkpoint(run) == before


async def test_a_newer_trainer_ends_an_older_one(new_run, make_spec):
    run = await new_run(make_spec())
    await run.write(range(8))
    async with run.train_loop() as loop:
        older = asyncio.create_task(loop.run())
        await reached(run, 2)
        term = (await heads(run)).term
        await run.stub.OpenTerm(pb.OpenTermRequest(run_id=run.run_id, term=term + 1000))
        await run.write(range(8, 12))
        with pytest.raises(FencedError, match="owns the run; stop this trainer"):
            await asyncio.wait_for(older, 60)


async def test_a_weight_store_that_is_away_is_waited_for(new_run, make_spec, weight_store):
    run, undisturbed = await new_run(make_spec()), await new_run(make_spec())
    await run.write(range(6))
    task = asyncio.create_task(run.train())
    await reached(run, 2)
    await weight_store.stop()
    await run.write(range(6, 12))
    await asyncio.sleep(0.3)
    assert not task.done()
    await weight_store.start()
    await asyncio.wait_for(task, 60)
    await undisturbed.write(range(12))
    await undisturbed.train()
    assert (await checkpoint(run)).weights.digest == (await checkpoint(undisturbed)).weights.digest


async def test_the_tokens_that_the_clip_of_covariances_leaves_out_are_the_seeds_and_reported(new_run, make_spec):
    """With all tokens of a covariance above 0 to choose from, a quarter of the step's."""
    ends = []
    for seed, clip in ((0, None), (0, {}), (0, {}), (1, {})):
        algorithm = {} if clip is None else {"covariance_clip": {"share": 0.25, "bounds": [0.0, 1e9]}}
        run = await new_run(make_spec(steps=2, seed=seed, algorithm=algorithm))
        await run.write(range(4))
        await run.train()
        reported = [event.data.get("covariance_clipped") for event in await EventLog(run.bus, run.run_id).read() if event.type == "metrics"]
        assert all(one is None if clip is None else 0.0 < one <= 0.25 for one in reported)
        ends.append((await checkpoint(run)).weights.digest)
    plain, one, again, other = ends
    assert one == again
    assert len({plain, one, other}) == 3


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp"])
async def test_a_kl_in_the_reward_moves_the_policy_and_is_reported(new_run, make_spec, name):
    """Entries have the log-probabilities of a base model, which is always 0.25 nats below the policy that sampled."""
    ends = []
    for kl in (0.0, 0.5):
        run = await new_run(make_spec(steps=2, algorithm={"name": name, "kl": kl}))
        entries = {index: make_entry(index) for index in range(4)}
        for entry in entries.values():
            logprobs = [np.frombuffer(sample.logprobs, "<f4") for sample in Group.FromString(entry.group).samples]
            entry.reference_logprobs.extend((row - np.float32(0.25)).astype("<f4").tobytes() for row in logprobs)
        await run.log.append(1, entries)
        await run.train()
        reported = [event.data["kl"] for event in await EventLog(run.bus, run.run_id).read() if event.type == "metrics"]
        assert reported == pytest.approx([0.25 if kl else 0.0] * 2, rel=1e-6)
        ends.append((await checkpoint(run)).weights.digest)
    assert ends[0] != ends[1]
