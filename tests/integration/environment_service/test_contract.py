"""What every environment promises, in Python and over HTTP alike, by the real service over gRPC."""

import asyncio
import json

import grpc
import pytest

from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
UNKNOWN_SESSION = pb.ENVIRONMENT_STATUS_UNKNOWN_SESSION
MALFORMED, UNKNOWN_TOOL = 2, 3


def said(answer):
    return [(one.role, one.content) for one in answer.messages]


async def test_it_describes_its_tools(episode, guessing):
    described = await episode(guessing).describe()
    assert described.determinism == pb.DETERMINISM_SEEDED
    assert {one.name: one.description for one in described.tools} == {
        "compare": "Says how the guess compares with the number.",
        "reveal": "Tells the number.",
    }
    assert all(json.loads(one.parameters_json)["type"] == "object" for one in described.tools)
    assert described.digest == (await episode(guessing, run_id="another").describe()).digest


async def test_an_episode_of_tools_then_of_turns_of_the_user(episode, guessing):
    world = episode(guessing)
    opened = await world.open()
    assert (opened.status, said(opened)) == (OK, [("user", "Find my number, at most 100.")])
    looked = await world.step(0, "Let me see.", ("compare", {"guess": -1}), ("reveal", {}))
    (sign, number) = looked.messages
    assert (looked.status, looked.done, looked.HasField("reward")) == (OK, False, False)
    assert [(one.role, one.call_id, one.name) for one in looked.messages] == [("tool", "c0.0", "compare"), ("tool", "c0.1", "reveal")]
    assert json.loads(sign.content) == {"sign": -1, "twice": False}
    wrong = await world.step(1, "101")
    assert (said(wrong), wrong.reward, dict(wrong.components), wrong.done) == ([("user", "no")], pytest.approx(-0.1), {"found": 0.0}, False)
    right = await world.step(2, number.content)
    assert (said(right), right.reward, right.done) == ([("user", "yes")], 1.5, True)
    assert dict(right.components) == {"found": 1.0, "said": float(len(number.content))}


async def test_a_turn_that_the_world_does_not_answer_ends_the_episode_with_its_reward(episode, guessing):
    world = episode(guessing)
    await world.open()
    answer = await world.step(0, "give up")
    assert (said(answer), answer.reward, dict(answer.components), answer.done) == ([], 0.5, {"said": 7.0}, False)


async def test_a_last_turn_is_judged_as_it_is_and_nothing_of_a_turn_cut_off_is_executed(episode, guessing):
    world = episode(guessing)
    await world.open()
    answer = await world.step(0, "", ("reveal", {}), end_reason="max_turns")
    assert (answer.status, len(answer.messages), answer.reward) == (OK, 1, 0.5)
    other = episode(guessing)
    await other.open("train.0.0.1")
    answer = await other.step(0, "cut", ("reveal", {}), finish="length", end_reason="length")
    assert (answer.status, len(answer.messages), answer.reward) == (OK, 0, 0.5)


async def test_calls_that_the_policy_got_wrong_are_answered_and_the_world_goes_on(episode, guessing):
    world = episode(guessing)
    await world.open()
    answer = await world.step(
        0, "", ("compare", {"guess": "x"}), ("compare", "{"), ("x", "{{", MALFORMED), ("fly", {}, UNKNOWN_TOOL), ("reveal", {})
    )
    assert answer.status == OK
    kinds = [json.loads(one.content)["error"] for one in answer.messages[1:4]]
    assert [one.call_id for one in answer.messages] == [f"c0.{n}" for n in range(5)]
    assert kinds == ["invalid_arguments", "malformed_call", "unknown_tool"]
    assert (await world.step(1, "101")).status == OK


async def test_more_calls_than_a_turn_may_have_are_answered_as_errors(episode, guessing):
    world = episode(guessing | {"calls_per_turn": 1})
    await world.open()
    answer = await world.step(0, "", ("reveal", {}), ("reveal", {}))
    assert [one.call_id for one in answer.messages] == ["c0.0", "c0.1"]
    assert json.loads(answer.messages[1].content)["error"] == "too_many_calls"


async def test_a_repeated_open_and_a_repeated_step_get_the_first_answer(episode, guessing):
    world = episode(guessing)
    first = await world.open()
    assert await world.open() == first
    stepped = await world.step(0, "101")
    assert await world.step(0, "101") == stepped
    both = await asyncio.gather(world.step(1, "102"), world.step(1, "102"))
    assert both[0] == both[1]


async def test_another_turn_in_place_of_the_last_a_gap_and_an_older_turn_are_refused(episode, guessing):
    world = episode(guessing)
    await world.open()
    await world.step(0, "101")
    for turn, text, reason in ((0, "102", "must equal the first"), (2, "103", "which is 1")):
        answer = await world.step(turn, text)
        assert (answer.status, reason in answer.reason) == (ERROR, True), answer
    await world.step(1, "102")
    assert (await world.step(0, "101")).status == ERROR


async def test_a_newer_attempt_closes_the_older_session_and_an_older_attempt_is_refused(episode, guessing):
    world = episode(guessing)
    await world.open(attempt=1)
    older = world.session
    opened = await world.open(attempt=2)
    assert opened.status == OK
    assert world.session != older
    assert (await world.step(0, "101", session=older)).status == UNKNOWN_SESSION
    refused = await episode(guessing).open(attempt=1)
    assert (refused.status, "older than attempt 2" in refused.reason) == (ERROR, True)
    await world.close()
    assert (await episode(guessing).open(attempt=1)).status == ERROR, "also when no session is open"
    assert (await episode(guessing).open(attempt=2)).status == OK


async def test_the_same_attempt_with_another_item_is_refused(episode, guessing):
    await episode(guessing).open("train.9.0.0")
    other = await episode(guessing, item={"most": 5}).open("train.9.0.0")
    assert (other.status, "another item or seed" in other.reason) == (ERROR, True)


async def test_an_unknown_session_is_said_to_be_unknown(episode, guessing):
    assert (await episode(guessing).step(0, "x", session="nothing")).status == UNKNOWN_SESSION


async def test_equal_seeds_and_calls_have_equal_digests_and_others_do_not(episode, guessing):
    async def digests(name, seed, *texts):
        world = episode(guessing, seed=seed)
        found = [(await world.open(name)).state_digest]
        return found + [(await world.step(turn, text)).state_digest for turn, text in enumerate(texts)]

    first = await digests("a", 1, "101", "102")
    assert await digests("b", 1, "101", "102") == first
    assert len(set(first)) == 3
    assert (await digests("c", 2, "101", "102"))[0] != first[0]
    assert (await digests("d", 1, "101", "103"))[:2] == first[:2]


async def test_a_section_that_cannot_be_used_is_refused_with_a_reason(episode):
    for section in ({}, {"source": "1 / 0"}, {"source": "class Environment: pass"}, {"service": "http://10.0.0.1:1/x"}):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await episode(section).describe()
        assert caught.value.details(), section
        opened = await episode(section).open()
        assert (opened.status, bool(opened.reason)) == (ERROR, True)


async def test_a_call_without_the_token_is_refused(service):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service[1]}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await EnvironmentServiceStub(channel).Close(pb.CloseRequest())
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
