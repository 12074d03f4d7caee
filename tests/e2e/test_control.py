"""Pause, resume, cancel, the queue of runs, and repeated requests."""

import json
import threading
from datetime import datetime

import pytest
import redis
from own_scorer import Scorer, judged

from gradbus.client import document
from gradbus.errors import ApiError

from .conftest import rests, within

LONG = {"groups_per_step": 4, "steps": 120}


def in_log(lab, run_id):
    """Number of groups in the buffer's log."""
    ports = json.loads((lab.state / "ports.json").read_text())
    password = (lab.state / "secrets" / "gateway" / "gradbus_buffer_password").read_text()
    with redis.Redis(port=ports["buffer"], username="gateway", password=password, protocol=2) as buffer:
        return sum(len(entries) for _, entries in buffer.xread({f"{{{run_id}}}:experience": "0-0"}))


def steps_since_the_pause(lab, run_id):
    """Steps trained after the conductor had taken the request, by the services' clocks (this machine's)."""
    events = [
        (datetime.fromisoformat(event["created_at"]), event) for event in document(lab.client.events_page(run_id, limit=1000))["data"]
    ]
    paused = next(at for at, event in events if event["type"] == "state" and event["data"]["state"] == "paused")
    return sum(event["type"] == "metrics" and at > paused for at, event in events)


@pytest.fixture
def blocked(spec):
    """Specs of runs whose first step waits until they are released."""
    release = threading.Event()

    def wait_and_judge(samples):
        release.wait(600)
        return judged(samples)

    with Scorer() as scorer:
        scorer.behaviour = wait_and_judge
        yield lambda **sections: spec(reward={"service": scorer.url, "timeout_seconds": 600.0}, **sections), release.set
        release.set()
        scorer.shutdown()


def test_a_paused_run_stops_within_two_steps_makes_way_and_ends_in_the_same_weights(lab, spec):
    digest = lab.final_digest(lab.train(spec(schedule=LONG)))
    run_id = lab.submit(spec(schedule=LONG))
    lab.until(run_id, lambda run: run["progress"]["step"] >= 5)
    lab.client.pause(run_id)
    lab.until(run_id, lambda run: run["state"] == "paused")
    stands = rests(lambda: lab.events(run_id, "metrics")[-1]["step"])
    assert stands < 119
    assert steps_since_the_pause(lab, run_id) <= 3, "the step in hand when the request was taken, and two more"
    lab.train(spec())  # with the trainer of the paused run
    assert lab.client.run(run_id).state == "paused"
    lab.client.resume(run_id)
    assert lab.final_digest(lab.ends(run_id)) == digest


def test_a_cancelled_run_is_quiet_in_five_seconds(lab, spec):
    run_id = lab.submit(spec(schedule=LONG | {"steps": 100_000}, checkpoint={"every": 100_000}))
    lab.until(run_id, lambda run: run["progress"]["step"] >= 3)
    within(60.0, lambda: lab.serving(run_id))
    lab.cancels(run_id)
    rests(lambda: (in_log(lab, run_id), lab.events(run_id, "metrics")[-1]["step"]))
    assert lab.client.cancel(run_id).state == "cancelled"


def test_a_paused_run_can_be_cancelled(lab, spec):
    run_id = lab.submit(spec(schedule=LONG))
    lab.client.pause(run_id)
    lab.until(run_id, lambda run: run["state"] == "paused")
    lab.cancels(run_id)


def test_runs_queue_and_all_finish_in_order(lab, spec, blocked):
    spec_blocked, release = blocked
    first, second = lab.submit(spec_blocked()), lab.submit(spec())
    waits = lab.until(second, lambda run: run["state"] == "queued" and run["waiting_for"])["waiting_for"]
    assert waits.startswith("a free trainer")
    assert first in waits, "who has it is named"
    release()
    assert lab.ends(first)["finished_at"] < lab.ends(second)["finished_at"]


def test_a_queued_run_can_be_cancelled_and_the_one_before_goes_on(lab, spec, blocked):
    spec_blocked, release = blocked
    first, second = lab.submit(spec_blocked()), lab.submit(spec())
    lab.cancels(second)
    release()
    lab.ends(first)
    assert not lab.samples(second)


def test_a_submission_sent_twice_is_one_run(lab, spec):
    body = spec()
    first, again = (lab.submit(body, idempotency_key="once-only") for _ in range(2))
    assert first == again
    with pytest.raises(ApiError, match="another body"):
        lab.submit(spec(name="other"), idempotency_key="once-only")
    lab.ends(first)


def test_a_request_for_a_run_that_is_over_is_answered(lab, spec):
    run = lab.train(spec())
    with pytest.raises(ApiError):
        lab.client.pause(run["id"])
    assert lab.client.run(run["id"]).state == "succeeded"
