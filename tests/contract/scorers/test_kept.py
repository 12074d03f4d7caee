"""A scorer with `cache` is asked about equal samples once; what it failed to answer it is asked again."""

import json

import pytest
from scorer_lab import ERROR, OK, SERVICES, SETTINGS, result

from gradbus.v1 import reward_pb2
from gradbus_reward.graders.base import Capacity
from gradbus_reward.scorers.factory import create_scorer
from gradbus_reward.scorers.kept import KeptAnswers


def request(*texts, item="{}", finish="stop"):
    """Samples with these responses."""
    samples = [
        reward_pb2.ScoreSample(sample_id=f"0.{n}", prompt="p", response=text, item_json=item, finish_reason=finish)
        for n, text in enumerate(texts)
    ]
    return reward_pb2.ScoreRequest(run_id="run", samples=samples)


@pytest.fixture(params=["http", "grpc"])
async def service(request):
    """A user's scorer that gives the n-th sample it is asked about n, and remembers which it was asked about."""

    class Asked(list):
        status = "ok"

        def answer(self, asked):
            self.append([sample["sample_id"] for sample in asked["samples"]])
            before = sum(map(len, self[:-1]))
            return [
                result(sample["sample_id"], float(before + n), self.status, reason="busy" if self.status != "ok" else "")
                for n, sample in enumerate(asked["samples"])
            ]

    asked = Asked()
    async with SERVICES[request.param](asked.answer) as asked.url:
        yield asked


@pytest.fixture
async def scorer():
    """Makes scorers of sections; those of one test share their answers, as in the service."""
    answers, made = KeptAnswers(), []

    def make(**section):
        made.append(create_scorer(json.dumps({"cache": True} | section), SETTINGS, Capacity(), "run", answers))
        return made[-1]

    yield make
    for one in made:
        await one.close()


def told(results):
    return {answer.sample_id: answer.reward for answer in results}


async def test_equal_samples_of_one_call_and_of_later_ones_are_asked_about_once(service, scorer):
    one = scorer(service=service.url)
    assert told(await one.score(request("a", "b", "a"), 30.0)) == {"0.0": 0.0, "0.1": 1.0, "0.2": 0.0}
    assert told(await one.score(request("c", "b"), 30.0)) == {"0.0": 2.0, "0.1": 1.0}
    assert told(await one.score(request("b", "c"), 30.0)) == {"0.0": 1.0, "0.1": 2.0}
    assert service == [["0.0", "0.1"], ["0.0"]]


async def test_another_row_or_another_end_is_another_sample(service, scorer):
    one = scorer(service=service.url)
    for asked in (request("a"), request("a", item='{"answer": 1}'), request("a", finish="length")):
        await one.score(asked, 30.0)
    assert len(service) == 3


async def test_scorers_with_equal_settings_share_answers_and_others_do_not(service, scorer):
    for section in ({}, {"timeout_seconds": 99.0}, {"shadow": {"s": {"grader": {"type": "tags"}}}}):
        await scorer(service=service.url, **section).score(request("a"), 30.0)
    assert len(service) == 1
    await scorer(service=service.url + "?v=2" if service.url.startswith("http") else service.url, cache=False).score(request("a"), 30.0)
    assert len(service) == 2


async def test_what_failed_is_asked_again(service, scorer):
    one = scorer(service=service.url)
    service.status = "error"
    assert [answer.status for answer in await one.score(request("a", "a"), 30.0)] == [ERROR, ERROR]
    service.status = "ok"
    assert [answer.status for answer in await one.score(request("a", "a"), 30.0)] == [OK, OK]


async def test_a_sample_that_cannot_be_scored_stays_so(service, scorer):
    one = scorer(service=service.url)
    service.status = "invalid"
    first = await one.score(request("a"), 30.0)
    assert await one.score(request("a"), 30.0) == first
    assert len(service) == 1


async def test_components_are_kept_and_a_shadow_adds_to_each_answer_anew(service, scorer):
    one = scorer(service=service.url, shadow={"own": {"grader": {"type": "length", "full": 1, "zero": 9}, "cache": True}})
    first, second = [(await one.score(request("a"), 30.0))[0] for _ in range(2)]
    assert first == second
    assert "shadow.own" in first.components


async def test_without_it_every_sample_is_asked_about(service, scorer):
    one = scorer(service=service.url, cache=False)
    for _ in range(2):
        await one.score(request("a", "a"), 30.0)
    assert service == [["0.0", "0.1"]] * 2


def test_the_answers_that_are_used_least_are_forgotten_beyond_the_bound():
    answers = KeptAnswers(max_bytes=1000)
    for n in range(4):
        answers.put(bytes([n]), b"x" * 50)
    answers.get(bytes([0]))
    answers.put(b"new", b"x" * 50)
    assert [answers.get(key) is not None for key in (bytes([0]), bytes([1]), bytes([2]), bytes([3]), b"new")] == [
        True,
        False,
        True,
        True,
        True,
    ]
    answers.put(b"huge", b"x" * 5000)
    assert answers.get(b"huge") is None, "one that is larger than all room"
