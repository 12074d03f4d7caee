"""`gradbus advise` on a run under way, and on those of which it can say nothing."""

import json

import pytest


@pytest.fixture
def running(lab, spec):
    run_id = lab.submit(spec(schedule={"steps": 400}))
    lab.until(run_id, lambda run: run["progress"]["step"] >= 12 and run["progress"]["shares"].get("generate"))
    yield run_id
    lab.client.cancel(run_id)
    lab.ends(run_id, "cancelled")


def test_a_run_under_way_is_told_what_holds_it_and_what_more_workers_bring(gradbus, running):
    done = gradbus("advise", running, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["workers"], found["limit"] in {"token", "train", "between"}) == (1, True)
    assert 0 < found["shares"]["generate"] <= 1
    assert 0 < found["shares"]["load"] < 1
    assert [one["workers"] for one in found["with_workers"]] == [2, 3, 4, 5]
    assert all(0 < one["seconds"] <= found["seconds"]["step"] * 1.01 for one in found["with_workers"])
    assert "is the limit" in gradbus("advise", running).stdout


def test_a_run_that_does_not_run_is_no_ground_for_advice(gradbus, lab, spec):
    run = lab.train(spec())
    done = gradbus("advise", run["id"])
    assert (done.returncode, "succeeded" in done.stderr, "at least 5 steps" in done.stderr) == (2, True, True)


def test_a_run_that_samples_nothing_needs_no_rollouts(gradbus, lab, spec, rows):
    given = rows([{"prompt": "sun and", "completion": " moon"}] * 4)
    body = {key: value for key, value in spec(schedule={"steps": 1}).items() if key not in {"rollout", "reward"}}
    run = lab.train(body | {"kind": "sft", "data": {"train": given}})
    done = gradbus("advise", run["id"])
    assert (done.returncode, "samples nothing" in done.stderr) == (2, True)
