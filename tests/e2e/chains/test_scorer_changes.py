"""The scorer of a live run is changed, and its bits are those of a run that was told so from the start."""

import json
import os
import signal

import pytest

from gradbus.client import document

GRADE_FIRST = "def grade(sample, item):\n    return float(sum(sample['output_text'].encode()) % 7)\n"
LONG = {"schedule": {"steps": 30}, "checkpoint": {"every": 10}}
CHANGED = {"grader": {"type": "python", "source": GRADE_FIRST}}


def scores(lab, run_id):
    """What held-out rows had, by version."""
    return [(one["version"], one["reward"]) for one in lab.events(run_id, "evaluation")]


@pytest.fixture(scope="module")
def changed(lab, spec, gradbus, tmp_path_factory):
    """A run whose scorer was changed by the command line after some steps; paused meanwhile, or it would be over."""
    folder = tmp_path_factory.mktemp("scorer")
    (folder / "first.py").write_text(GRADE_FIRST)
    (folder / "reward.toml").write_text('[reward.grader]\ntype = "python"\nfile = "first.py"\n')
    run_id = lab.submit(spec(name="live", **LONG))
    lab.until(run_id, lambda run: run["progress"]["step"] >= 2)
    lab.client.pause(run_id)
    answer = gradbus("reward", run_id, "--change", folder / "reward.toml", "--json")
    assert answer.returncode == 0, answer.stderr
    lab.client.resume(run_id)
    return lab.ends(run_id)


def test_a_run_whose_scorer_was_changed_ends_in_the_bits_of_one_that_was_told_from_the_start(lab, spec, changed):
    first, then = document(lab.client.reward(changed["id"]))["scorers"]
    assert (first["from_group"], then["scorer"]["grader"]["source"]) == (0, GRADE_FIRST)
    assert 8 < then["from_group"] < 120
    reward = changed["spec"]["reward"] | {"changes": [CHANGED | {"from_group": then["from_group"]}]}
    told = lab.train(spec(**LONG, reward=reward))
    untold = lab.train(spec(**LONG))
    assert lab.final_digest(changed) == lab.final_digest(told) != lab.final_digest(untold)


def test_every_group_is_judged_by_the_scorer_of_its_index(lab, changed):
    [event] = lab.events(changed["id"], "scorer")
    for sample in lab.samples(changed["id"]):
        is_new = sample["index"] >= event["from_group"]
        text = sample["text"]
        assert sample["reward"] == (sum(text.encode()) % 7 if is_new else len(set(text)) / 16)


def test_lineage_and_fork_know_the_scorer(lab, changed, gradbus):
    [event] = lab.events(changed["id"], "scorer")
    found = json.loads(gradbus("lineage", f"{changed['id']}@30", "--json").stdout)
    assert [(one["section"], one["from_group"]) for one in found["scorers"]] == [("reward", 0), ("reward.changes.0", event["from_group"])]
    forked = json.loads(gradbus("fork", changed["id"], "--at", 30, "--set", "schedule.steps=1", "--dry-run", "--json").stdout)
    assert (forked["spec"]["reward"]["grader"]["source"], forked["spec"]["reward"]["changes"]) == (GRADE_FIRST, [])


def test_a_change_for_a_run_that_waits_applies_from_its_first_group_and_to_its_first_held_out_rows(lab, spec, rows):
    held_out = {"data": {"eval": rows({"prompt": f"{word} and", "answer": word} for word in ("sun", "sky"))}, "evaluation": {"every": 3}}
    before = lab.submit(spec(schedule={"steps": 200}))
    waiting = lab.submit(spec(name="waits", **held_out))
    assert [one.from_group for one in lab.client.change_reward(waiting, CHANGED).scorers] == [0, None]
    assert len(lab.client.change_reward(waiting, CHANGED).scorers) == 2, "asked again"
    lab.cancels(before)
    run = lab.ends(waiting)
    assert [one.from_group for one in lab.client.reward(waiting).scorers] == [0, 0]
    told = lab.train(spec(reward=CHANGED, **held_out))
    assert lab.final_digest(run) == lab.final_digest(told)
    assert scores(lab, waiting) == scores(lab, told["id"])


def test_conductors_that_die_keep_the_scorer_that_was_decided_and_that_asked_for(lab, spec):
    def kill():
        conductor = json.loads((lab.state / "stack.json").read_text())["processes"]["conductor"]["pid"]
        os.kill(conductor, signal.SIGKILL)
        return conductor

    run_id = lab.submit(spec(name="killed", **LONG))
    lab.until(run_id, lambda run: run["progress"]["step"] >= 2)
    lab.client.pause(run_id)
    killed = {kill()}
    lab.client.change_reward(run_id, CHANGED)
    lab.client.resume(run_id)
    lab.until(run_id, lambda _: lab.client.reward(run_id).scorers[1].from_group is not None)
    killed.add(kill())
    run = lab.ends(run_id)
    assert len(killed) == 2
    begins = lab.client.reward(run_id).scorers[1].from_group
    reward = run["spec"]["reward"] | {"changes": [CHANGED | {"from_group": begins}]}
    assert lab.final_digest(run) == lab.final_digest(lab.train(spec(reward=reward, **LONG)))
