"""Runs each load scenario for seconds on real services around stubs. Checks the report, not the speed."""

import asyncio
import importlib.util
import math

import pytest
import waiting_agents

from gradbus.client import document
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.rig import Rig, running
from gradbus_load.scenarios import memory, overlap, queue, throughput, workers
from gradbus_load.stub_workers.rig import WorkersRig

FAST = Rig(EngineTiming(step_seconds=0.0005, median_tokens=8.0), LearnerTiming(step_seconds=0.01))


def by_measure(outcome):
    return {finding.measure: finding.value for finding in outcome.findings}


@pytest.mark.slow
async def test_every_scenario_measures_a_real_run(tmp_path):
    async with running(tmp_path, FAST) as bench:
        overlapping = await overlap.measure(
            overlap.Settings(modes=("free",), staleness=(1,), steps=3, warm_up=1, groups=4, group_size=4, slots=8, most_tokens=64), bench
        )
        durable = await throughput.measure(throughput.Settings(steps=3, groups=4, group_size=8, most_tokens=64), bench)
        watched = await memory.measure(memory.Settings(minutes=0.05, every_seconds=0.1), bench)
        if importlib.util.find_spec("locust"):
            await asks_rest(bench)
    (row,) = overlapping.rows
    assert row[:2] == ("free", 1)
    assert overlapping.data["rows"][0]["share"] > 0
    assert len(durable.data["admitted"]) == 3 * 4, "every group of the run, once"
    assert len(durable.data["latency_ms"]) > 0
    assert by_measure(durable)["durable samples in groups of 8"] > 0
    assert {"rollout-0", "trainer-0", "conductor", "buffer", "nats"} <= durable.data["cpu_seconds"].keys()
    assert {len(sizes) for sizes in watched.data["rss_bytes"].values()} == {len(watched.data["seconds"])}
    assert math.isfinite(by_measure(watched)["fastest certain growth of a process"])
    assert watched.data["steps"] >= 1


async def asks_rest(bench):
    from gradbus_load.scenarios import rest

    settings = rest.Settings(submits=20, submits_a_second=20, submitters=4, reads_a_second=10, readers=2, followers=2, most_seconds=20)
    found = await rest.measure(settings, bench)
    counts = {answers["name"]: (answers["count"], answers["failures"]) for answers in found.data["answers"]}
    assert counts["submit"] == (20, 0)
    assert counts["status"][0] > 0
    assert counts["event"][0] > 0


@pytest.mark.slow
async def test_workers_that_share_a_process_serve_are_told_of_versions_and_are_missed(tmp_path):
    rig = WorkersRig(processes=2, group_seconds=0.01, learner=LearnerTiming(step_seconds=0.2))
    settings = workers.Settings(
        points=((4, 1), (6, 2)), seconds=4.0, settle_seconds=0.0, syncs_seconds=1.0, rig=rig, floor_version_seconds=1.0
    )
    async with running(tmp_path, rig) as bench:
        outcome = await workers.measure(settings, bench)
    assert [row[:2] for row in outcome.rows] == [(4, 1), (6, 2)]
    for point, holders in zip(outcome.data["points"], (4, 3), strict=True):
        assert point["versions"] > 0
        assert point["holders_per_version"] == holders
        assert 0 <= point["told_seconds"]["last"] <= point["held_seconds"]["last"]
        assert point["beats_per_second"] > 0
        assert point["death_seconds"] > 1, "a heartbeat that stops has to expire first"


@pytest.mark.slow
async def test_runs_that_wait_end_when_they_are_cancelled_also_across_a_kill_of_every_process(tmp_path):
    settings = queue.Settings(waiting=(5, 150), cancelled=60, cancelled_before_kill=60, seconds=0.2)
    async with running(tmp_path, settings.rig) as bench:
        outcome = await queue.measure(settings, bench)
        runs = await asyncio.to_thread(lambda: list(map(document, bench.client.runs())))
        training = next(run for run in runs if run["created_at"] == min(run["created_at"] for run in runs))
    states = [run["state"] for run in runs if run["id"] != training["id"]]
    assert (states.count("cancelled"), states.count("queued")) == (120, 30)
    assert [row[0] for row in outcome.rows] == [5, 150]
    assert by_measure(outcome)["60 cancelled runs end in"] >= 0


@pytest.mark.slow
async def test_agents_that_wait_hold_a_connection_each_and_leave_nothing():
    found = await waiting_agents.measure(16, 0.5)
    files = {waits_for: {name: of.files for name, of in services.items()} for waits_for, services in found.items()}
    assert files["a turn"]["agent"] >= files["an agent"]["agent"] + 16
    for name in ("gateway", "conductor"):
        assert files["a turn"][name] < files["an agent"][name] + 16, "agents reach their own service alone"
        assert abs(files["nobody any more"][name] - files["nobody"][name]) < 16
