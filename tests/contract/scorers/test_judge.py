"""Judges behind OpenAI's chat completions: what they are asked, how strictly they are read, and what a failure costs."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from scorer_lab import ERROR, INVALID, OK, SETTINGS, raw_http_service, write_json

from gradbus.user_services.keys import ServiceKeys
from gradbus.v1 import reward_pb2
from gradbus_reward.graders import judge as judge_module
from gradbus_reward.graders.base import Capacity
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer

RUBRIC = "Rate {{ sample.output_text }} as an answer to {{ item.prompt }}. End with a line that has only a number from 0 to 1."


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(judge_module, "_WAIT_SECONDS", 0.01)


def completion(text, finish="stop"):
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
    }


@asynccontextmanager
async def judge(answer):
    """A judge that says `answer` of the request: a text, a document, or a status to fail with. With its requests."""
    seen = []

    async def respond(head, body, writer):
        seen.append((head.decode().lower(), json.loads(body)))
        given = answer(json.loads(body))
        if isinstance(given, int):
            await write_json(writer, {"error": "no"}, f"{given} No")
        else:
            await write_json(writer, completion(given) if isinstance(given, str) else given)

    async with raw_http_service(respond) as url:
        yield url.removesuffix("/score") + "/v1", seen


def asked(*responses, run_id="run-1"):
    samples = [
        reward_pb2.ScoreSample(sample_id=f"0.{n}", response=text, finish_reason="stop", item_json='{"prompt": "7+5="}')
        for n, text in enumerate(responses)
    ]
    return reward_pb2.ScoreRequest(run_id=run_id, samples=samples)


async def graded(url, *responses, seconds=20.0, capacity=None, run_id="run-1", settings=SETTINGS, **more):
    grader = {"type": "score_model", "url": url, "model": "judge", "input": RUBRIC, **more}
    scorer = create_scorer(json.dumps({"grader": grader}), settings, capacity or Capacity(), run_id)
    try:
        return await scorer.score(asked(*responses, run_id=run_id), seconds)
    finally:
        await scorer.close()


async def test_the_judge_gets_the_rubric_and_its_number_is_the_reward():
    async with judge(lambda _body: "It is right.\n\nScore: 0.75\n") as (url, seen):
        (result,) = await graded(url, "12", system="Be strict.", temperature=0.5, max_tokens=64)
    assert (result.status, result.reward) == (OK, 0.75)
    head, body = seen[0]
    assert head.startswith("post /v1/chat/completions http/1.1")
    assert body == {
        "model": "judge",
        "messages": [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": "Rate 12 as an answer to 7+5=. End with a line that has only a number from 0 to 1."},
        ],
        "temperature": 0.5,
        "max_tokens": 64,
    }


@pytest.mark.parametrize(("text", "reward"), [("1", 1.0), ("why\n 0.0 ", 0.0), ("score = .5\nSCORE: 1.00", 1.0), ("8\n0.25", 0.25)])
async def test_a_number_alone_on_the_last_line_is_read(text, reward):
    async with judge(lambda _body: text) as (url, _):
        (result,) = await graded(url, "12")
    assert (result.status, result.reward) == (OK, reward)


NO_NUMBERS = ["", "1.5", "-1", "nan", "inf", "1e0", "8/10", "**1**", "1\nThat is all", "about 0.5", "0x1", "1" * 400]


@pytest.mark.parametrize("said", [*NO_NUMBERS, completion(None), completion("thinking", "length"), completion("of 10 I give\n1", "length")])
async def test_whatever_else_a_judge_says_is_no_reward(said):
    async with judge(lambda _body: said) as (url, seen):
        (result,) = await graded(url, "12", tries=2)
    assert (result.status, result.reward, len(seen)) == (INVALID, 0.0, 2)
    assert result.reason


@pytest.mark.parametrize("said", [{}, {"choices": []}, {"choices": [{"text": "1"}]}, [1], None, "[" * 5000])
async def test_a_server_that_is_no_judge_ends_the_run(said):
    async def respond(_head, _body, writer):
        await write_json(writer, said)

    async with raw_http_service(respond) as url:
        (result,) = await graded(url, "12")
    assert (result.status, result.permanent) == (ERROR, True)
    assert "sent no chat completion" in result.reason


async def test_an_answer_that_was_cut_off_says_so():
    async with judge(lambda _body: completion("thinking", "length")) as (url, _):
        (result,) = await graded(url, "12", tries=1)
    assert "cut off at max_tokens" in result.reason


async def test_a_range_bounds_the_number():
    async with judge(lambda body: "11" if "Rate 12 " in body["messages"][0]["content"] else "-5") as (url, _):
        low, high = await graded(url, "13", "12", range=[-5, 10], tries=1)
    assert [(low.status, low.reward), high.status] == [(OK, -5.0), INVALID]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_judge_is_asked_again(status):
    turns = iter([status, status, "0.5"])
    async with judge(lambda _body: next(turns)) as (url, seen):
        (result,) = await graded(url, "12")
    assert (result.status, result.reward, len(seen)) == (OK, 0.5, 3)


@pytest.mark.parametrize(("status", "calls"), [(503, 2), (401, 1), (404, 1), (500, 1)])
async def test_a_judge_that_fails_is_an_error_and_is_scored_again_later(status, calls):
    async with judge(lambda _body: status) as (url, seen):
        (result,) = await graded(url, "12", tries=2)
    assert (result.status, result.permanent, len(seen)) == (ERROR, False, calls)
    assert str(status) in result.reason


async def test_a_judge_that_is_not_there_is_an_error():
    async with judge(lambda _body: "1") as (url, _):
        pass
    (result,) = await graded(url, "12", seconds=8.0, tries=1)
    assert (result.status, result.permanent) == (ERROR, False)


async def test_a_judge_that_hangs_costs_its_own_samples_and_the_others_are_kept():
    capacity = Capacity()
    hangs = asyncio.Event()

    async def respond(_head, body, writer):
        if b"Rate slow " in body:
            await hangs.wait()
        await write_json(writer, completion("1"))

    async with raw_http_service(respond) as url:
        slow, quick = await graded(url, "slow", "quick", seconds=1.5, capacity=capacity)
        hangs.set()
        again, kept = await graded(url, "slow", "quick", capacity=capacity)
    assert [(slow.status, slow.permanent), quick.status] == [(ERROR, False), OK]
    assert [again.status, kept.status] == [OK, OK]
    assert capacity.verdicts.calls(("run-1", "reward", "grader")) == 3


async def test_what_was_asked_is_not_asked_again():
    capacity = Capacity()
    async with judge(lambda _body: "1") as (url, seen):
        await graded(url, "12", "12", "13", capacity=capacity)
        await graded(url, "13", "12", capacity=capacity, run_id="run-2")
        assert len(seen) == 2
        await graded(url, "12", capacity=capacity, model="another")
        await graded(url, "12", capacity=capacity, temperature=1.0)
        assert len(seen) == 4
        await graded(url, "12", capacity=capacity, range=[0, 10])
    assert len(seen) == 5
    assert [capacity.verdicts.calls((run, "reward", "grader")) for run in ("run-1", "run-2")] == [5, 0]


async def test_a_budget_that_is_spent_ends_the_run_and_no_other():
    capacity = Capacity()
    async with judge(lambda _body: "1") as (url, seen):
        results = await graded(url, "12", "13", "14", capacity=capacity, max_calls=2)
        await graded(url, "15", capacity=capacity, max_calls=2, run_id="run-2")
    assert sorted((result.status, result.permanent) for result in results) == [(OK, False), (OK, False), (ERROR, True)]
    reason = next(result.reason for result in results if result.status == ERROR)
    assert reason.endswith("was called 2 times, its max_calls; raise it, or take fewer steps")
    assert len(seen) == 3


async def test_a_shadow_and_another_part_spend_their_own_budget_alone():
    async with judge(lambda _body: "1") as (url, seen):
        one = {"type": "score_model", "url": url, "model": "m", "input": RUBRIC, "max_calls": 2}
        parts = {"a": one, "b": one | {"model": "n", "max_calls": None}}
        grader = {"type": "multi", "graders": parts, "calculate_output": "a + b"}
        shadow = {"grader": one | {"model": "o", "max_calls": None}}
        scorer = create_scorer(json.dumps({"grader": grader, "shadow": {"other": shadow}}), SETTINGS, Capacity(), "run-1")
        results = [await scorer.score(asked(text), 20.0) for text in ("12", "13")]
        await scorer.close()
    assert ([one.reward for (one,) in results], len(seen)) == ([2.0, 2.0], 6)


async def test_the_key_of_the_operator_goes_to_its_origin_alone():
    async with judge(lambda _body: "1") as (url, seen):
        for name in (url.removesuffix("/v1"), "http://127.0.0.1", "127.0.0.1", url.removesuffix("/v1").replace("http", "https")):
            settings = ScorerSettings(addresses=SETTINGS.addresses, service_keys=ServiceKeys({name: "sk-1"}))
            await graded(url, "12", settings=settings)
        await graded(url, "12")
    assert ["authorization: bearer sk-1" in head for head, _ in seen] == [True, False, False, False, False]


async def test_a_judge_may_not_be_anywhere():
    (result,) = await graded("http://169.254.169.254/v1", "12", seconds=2.0)
    assert (result.status, "no scorer may use" in result.reason) == (ERROR, True)


async def test_a_judge_is_a_part_like_others():
    parts = {
        "judge": {"type": "score_model", "model": "m", "input": RUBRIC},
        "right": {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "12"},
    }
    async with judge(lambda _body: "0.5") as (url, _):
        parts["judge"]["url"] = url
        grader = {"type": "multi", "graders": parts, "calculate_output": "judge + right"}
        scorer = create_scorer(json.dumps({"grader": grader}), SETTINGS, Capacity())
        sample = reward_pb2.ScoreSample(sample_id="0.0", response="12", item_json='{"prompt": "7+5="}')
        (result,) = await scorer.score(reward_pb2.ScoreRequest(samples=[sample]), 20.0)
        await scorer.close()
    assert (result.reward, dict(result.components)) == (1.5, {"judge": 0.5, "right": 1.0})
