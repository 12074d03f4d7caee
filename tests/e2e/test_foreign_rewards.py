"""Users' scorers over HTTP and gRPC, while they answer and while they do not."""

import itertools
import threading
import time

import pytest
from own_scorer import Scorer, judged

from gradbus.graders.serve import ScorerServer

from .conftest import within


def doubled(samples):
    return judged(samples) * 2


def foreign(samples):
    return [result | {"sample_id": f"other-{n}"} for n, result in enumerate(judged(samples))]


def not_a_number(samples):
    return [result | {"reward": float("nan")} for result in judged(samples)]


def hanging(samples):
    time.sleep(3.0)
    return judged(samples)


def failing(samples):
    raise RuntimeError("out of order")


@pytest.fixture
def scorer(free_port):
    with Scorer(free_port()) as server:
        yield server
        server.shutdown()


@pytest.fixture
def served(spec, scorer):
    """A spec with this scorer and a timeout that it never reaches."""
    return spec(reward={"service": scorer.url, "timeout_seconds": 60.0})


def test_an_http_service_judges_every_sample(lab, served, scorer):
    run = lab.train(served)
    assert {tuple(sorted(call)) for call in scorer.asked} == {("deadline_ms", "run_id", "samples")}
    asked = [sample for call in scorer.asked for sample in call["samples"]]
    assert len({sample["sample_id"] for sample in asked}) == 3 * 4 * 4
    assert all(sample["item"]["answer"] + " and" == sample["prompt"] for sample in asked)
    assert max(sample["weight_version"] for sample in asked) == 1
    rewards = {sample["id"]: sample["reward"] for sample in lab.samples(run["id"])}
    assert rewards == pytest.approx({result["sample_id"]: result["reward"] for result in judged(asked)})


def test_a_grpc_service_judges_every_sample(lab, spec):
    seen = []

    def score(sample):
        seen.append(sample.sample_id)
        return len(set(sample.response)) / 16

    server = ScorerServer(score, "127.0.0.1:0")
    server.start()
    try:
        run = lab.train(spec(reward={"service": f"grpc://127.0.0.1:{server.port}", "timeout_seconds": 60.0}))
    finally:
        server.stop()
    assert set(seen) == {sample["id"] for sample in lab.samples(run["id"])}, "some twice, if a call was late"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (failing, "responded with 500"),
        (not_a_number, "the scorer's reward is nan"),
        (foreign, "ids it was not asked about"),
        (doubled, "returned 2 results"),
    ],
)
def test_a_run_waits_for_a_service_that_fails_says_why_and_goes_on(lab, served, scorer, behaviour, words):
    waits_for(lab, served, scorer, behaviour, words)


def test_a_run_waits_for_a_service_that_hangs_says_why_and_goes_on(lab, spec, scorer):
    reward = {"service": scorer.url, "timeout_seconds": 1.0}
    waits_for(lab, spec(reward=reward), scorer, hanging, "did not respond within")


def test_a_service_that_hangs_now_and_then_changes_no_bit_and_is_waited_for_by_nobody(lab, spec, scorer):
    reward = {"service": scorer.url, "timeout_seconds": 3600.0}
    quiet = lab.train(spec(reward=reward, schedule={"steps": 10}))
    released, calls = threading.Event(), itertools.count(1)

    def sometimes_hanging(samples):
        if next(calls) % 5 == 0:
            released.wait(3600)
        return judged(samples)

    scorer.behaviour = sometimes_hanging
    run = lab.train(spec(reward=reward, schedule={"steps": 10}))
    released.set()
    assert next(calls) > 5
    assert lab.final_digest(run) == lab.final_digest(quiet)


def failing_after_a_step(samples):
    return failing(samples) if any(sample["weight_version"] > 0 for sample in samples) else judged(samples)


@pytest.mark.slow
def test_a_run_whose_service_is_away_leaves_its_trainer_to_another_one_and_ends_in_the_same_bits(lab, spec, served, scorer):
    quiet = lab.train(served)
    scorer.behaviour = failing_after_a_step
    run_id = lab.submit(served)
    lab.until(run_id, lambda run: run["state"] == "waiting_for_reward")
    other = lab.submit(spec())
    queued = lab.until(run_id, lambda run: run["state"] == "queued")
    assert "responded with 500" in queued["reason"]
    lab.ends(other)
    scorer.behaviour = judged
    run = lab.ends(run_id)
    assert lab.final_digest(run) == lab.final_digest(quiet)


def out_of_range(samples):
    return [result | {"reward": 1e200} for result in judged(samples)]


def test_a_service_whose_rewards_can_never_be_used_ends_its_run(lab, served, scorer):
    scorer.behaviour = out_of_range
    run = lab.ends(lab.submit(served), "failed")
    assert "could not be scored in 6 attempts" in run["reason"]
    assert "the scorer's reward is 1e+200" in run["reason"]
    within(60.0, lambda: lab.serving(run["id"]) == [])


def waits_for(lab, served, scorer, behaviour, words):
    scorer.behaviour = behaviour
    run_id = lab.submit(served)
    waits = lab.until(run_id, lambda run: run["state"] == "waiting_for_reward")
    assert words in waits["waiting_for"]
    assert waits["progress"]["step"] == 0
    scorer.behaviour = judged
    run = lab.ends(run_id)
    assert "waiting_for_reward" in [event["state"] for event in lab.events(run_id, "state")]
    assert (run["progress"]["step"], run["waiting_for"]) == (3, "")


def test_a_service_that_is_down_is_named_and_the_run_can_be_cancelled(lab, served, scorer):
    scorer.shutdown()
    scorer.server_close()
    run_id = lab.submit(served)
    waits = lab.until(run_id, lambda run: run["state"] == "waiting_for_reward")
    assert scorer.url in waits["waiting_for"]
    lab.cancels(run_id)
    with Scorer(scorer.server_port) as back:
        time.sleep(5.0)
        back.shutdown()
        assert not back.asked, "nobody asks for a cancelled run's rewards"


def test_a_sample_that_cannot_be_judged_is_masked(lab, served, scorer):
    scorer.behaviour = lambda samples: [
        result | {"status": "invalid", "reason": "no letters"} if result["sample_id"].endswith("0") else result
        for result in judged(samples)
    ]
    run = lab.train(served)
    masked = [sample for sample in lab.samples(run["id"]) if sample["reward_status"] == "invalid"]
    assert masked
    assert {(sample["reward"], sample["reason"]) for sample in masked} == {(None, "no letters")}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def grade(sample, item):\n    raise ValueError('not today')\n", "not today"),
        ("def grade(sample, item):\n    return float('nan')\n", "nan"),
    ],
)
def test_a_python_grader_that_fails_judges_nothing_and_says_why(lab, spec, source, words):
    run = lab.ends(lab.submit(spec(reward={"grader": {"type": "python", "source": source}})), "failed")
    assert words in run["reason"]
    samples = lab.samples(run["id"])
    assert {(sample["reward_status"], sample["reward"], sample["verdict"]) for sample in samples} == {("invalid", None, "filtered")}
    assert all(words in sample["reason"] for sample in samples)
    assert run["progress"]["filtered"] == 12


def test_a_grader_that_returns_1e200_now_and_then_masks_those_samples(lab, spec):
    source = "def grade(sample, item):\n    text = sample['output_text']\n    return 1e200 if 'e' in text else len(set(text)) / 16\n"
    run = lab.train(spec(reward={"grader": {"type": "python", "source": source}}))
    masked = [sample for sample in lab.samples(run["id"]) if sample["reward_status"] == "invalid"]
    reason = "the grader's reward is 1e+200; scale it to at most 1e+06"
    assert masked
    assert {(sample["reward"], sample["reason"]) for sample in masked} == {(None, reason)}


def test_a_python_grader_that_never_ends_does_not_hold_the_run(lab, spec):
    source = "def grade(sample, item):\n    while True:\n        pass\n"
    run_id = lab.submit(spec(reward={"grader": {"type": "python", "source": source}, "timeout_seconds": 1.0}))
    waits = lab.until(run_id, lambda run: run["state"] == "waiting_for_reward")
    assert waits["waiting_for"].startswith("the scorer on sample")
    assert "scores no sample: the grader was stopped" in lab.ends(run_id, "failed")["reason"]
