"""Pause, resume, cancel, the queue of runs, and a request that is sent twice."""

import json
import time
from datetime import datetime

import pytest
import redis

from gradbus.errors import ApiError

LONG = {"groups_per_step": 4, "steps": 100}


def in_log(lab, run_id):
    """Groups in the buffer's log, by the buffer itself."""
    ports = json.loads((lab.state / "ports.json").read_text())
    password = (lab.state / "secrets" / "gateway" / "gradbus_buffer_password").read_text()
    with redis.Redis(port=ports["buffer"], username="gateway", password=password, protocol=2) as buffer:
        return sum(len(entries) for _, entries in buffer.xread({f"{{{run_id}}}:experience": "0-0"}))


def steps_since(lab, run_id, moment):
    """Steps trained after `moment`, by the trainer's own clock, which is this machine's."""
    events = [event for event in lab.client.events(run_id, limit=1000)["data"] if event["type"] == "metrics"]
    return sum(datetime.fromisoformat(event["created_at"]).timestamp() > moment for event in events)


def idle(lab):
    workers = lab.client.workers()["data"]
    return {worker["role"] for worker in workers} >= {"trainer", "rollout"} and not any(worker["run_id"] for worker in workers)


def test_a_paused_run_stops_within_two_steps_makes_way_and_ends_in_the_same_weights(lab, spec):
    digest = lab.final_digest(lab.train(spec(schedule=LONG)))
    run_id = lab.submit(spec(schedule=LONG))
    lab.until(run_id, lambda run: run["progress"]["step"] >= 5)
    lab.client.pause(run_id)
    asked = time.time()
    paused_at = lab.until(run_id, lambda run: run["state"] == "paused")["progress"]["step"]
    time.sleep(1.5)
    stands = lab.events(run_id, "metrics")[-1]["step"]
    assert steps_since(lab, run_id, asked) <= 3, "the step in hand when the wish was written, and two more"
    assert paused_at < 100
    time.sleep(1.0)
    assert lab.events(run_id, "metrics")[-1]["step"] == stands
    lab.train(spec())  # with the trainer of the paused run
    assert lab.client.run(run_id)["state"] == "paused"
    lab.client.resume(run_id)
    assert lab.final_digest(lab.ends(run_id)) == digest


def test_a_cancelled_run_is_quiet_in_five_seconds(lab, spec):
    run_id = lab.submit(spec(schedule=LONG | {"steps": 100_000}, checkpoint={"every": 100_000}))
    lab.until(run_id, lambda run: run["progress"]["step"] >= 3)
    began = time.monotonic()
    lab.client.cancel(run_id)
    lab.ends(run_id, "cancelled", seconds=5.0)
    while not idle(lab):
        assert time.monotonic() - began < 5.0, "a worker still has the run"
        time.sleep(0.1)
    time.sleep(max(0.0, began + 5.0 - time.monotonic()))
    entries, steps = in_log(lab, run_id), len(lab.events(run_id, "metrics"))
    time.sleep(2.0)
    assert (in_log(lab, run_id), len(lab.events(run_id, "metrics"))) == (entries, steps)
    assert lab.client.cancel(run_id)["state"] == "cancelled"


def test_a_paused_run_can_be_cancelled(lab, spec):
    run_id = lab.submit(spec(schedule=LONG))
    lab.client.pause(run_id)
    lab.until(run_id, lambda run: run["state"] == "paused")
    lab.client.cancel(run_id)
    lab.ends(run_id, "cancelled", seconds=5.0)


def test_runs_queue_and_all_finish_in_order(lab, spec):
    first, second = lab.submit(spec(schedule=LONG | {"steps": 60})), lab.submit(spec())
    waits = lab.until(second, lambda run: run["state"] == "queued" and run["waiting_for"])["waiting_for"]
    assert waits.startswith("a free trainer")
    assert first in waits, "who has it is named"
    assert lab.ends(first)["finished_at"] < lab.ends(second)["finished_at"]


def test_a_queued_run_can_be_cancelled_and_the_one_before_goes_on(lab, spec):
    first, second = lab.submit(spec(schedule=LONG)), lab.submit(spec())
    lab.client.cancel(second)
    lab.ends(second, "cancelled", seconds=5.0)
    assert lab.client.run(first)["state"] != "cancelled"
    lab.ends(first)
    assert not lab.samples(second)


def test_a_submission_sent_twice_is_one_run(lab, spec):
    body = spec()
    first, again = (lab.submit(body, idempotency_key="once-only") for _ in range(2))
    assert first == again
    with pytest.raises(ApiError, match="another body"):
        lab.submit(spec(name="other"), idempotency_key="once-only")
    lab.ends(first)


def test_a_wish_for_a_run_that_is_over_is_answered(lab, spec):
    run = lab.train(spec())
    with pytest.raises(ApiError):
        lab.client.pause(run["id"])
    assert lab.client.run(run["id"])["state"] == "succeeded"
