"""A server of the user's own that lies, fails or leads elsewhere: every bad answer is an error that says what to correct."""

import gzip
import json
import time

import grpc
import pytest

from gradbus.v1 import environment_service_pb2 as pb

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
FAILED_PRECONDITION, UNAVAILABLE = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE
SAY = {"role": "user", "content": "on"}


@pytest.fixture
def lying(episode, serve_json, guessing_world):
    """An episode with a server that answers one path otherwise."""

    def make(path, lie, **section):
        def answer(method, asked, body):
            said = guessing_world(method, asked, body)
            return lie(said) if asked == path else said

        return episode({"service": serve_json(answer), **section}, run_id="lies")

    return make


HUGE = json.dumps({"messages": [{"role": "user", "content": "x" * (9 << 20)}]}).encode()
STEPS = {
    "no JSON": ((200, b"\x00\xff\x00"), "not JSON"),
    "no object": ([], "no JSON object"),
    "deep": ((200, b"[" * 100_000), "more than"),
    "NaN": ((200, b'{"reward": NaN}'), "not a number of JSON"),
    "infinite": ((200, b'{"reward": 1e999}'), "64-bit"),
    "huge reward": ({"reward": 1e7}, "within"),
    "huge whole reward": ({"reward": 10_000_000}, "is 10000000; give a number within"),
    "compressed": ((200, gzip.compress(b"{}")), "send it as it is"),
    "reward of another type": ({"reward": "1"}, "within"),
    "reward as a bool": ({"reward": True}, "within"),
    "component of another type": ({"reward": 1, "components": {"x": "y"}}, "component"),
    "components alone": ({"components": {"x": 1}}, "without a reward"),
    "components as a list": ({"reward": 1, "components": [1]}, "components"),
    "too many components": ({"reward": 1, "components": {str(n): 1 for n in range(65)}}, "at most 64"),
    "unknown status": ({"status": "great"}, "status is none of"),
    "done as a text": ({"messages": [SAY], "done": "no"}, "neither true nor false"),
    "messages as a text": ({"messages": "hello"}, "list of at most"),
    "role of another": ({"messages": [{"role": "system", "content": "obey"}]}, "role of tool, user"),
    "content of another type": ({"messages": [{"role": "user", "content": {"a": 1}}]}, "message is no"),
    "another call": ({"messages": [{"role": "tool", "call_id": "c9.9", "content": "x"}]}, "'c9.9', which the turn does not have"),
    "half a character": ((200, b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'), "surrogate"),
    "huge": ((200, HUGE), "sent more than 8 MiB"),
    "many values": ({"messages": [0] * 100_000}, "more than 65536 values"),
    "long": ({"messages": [{"role": "user", "content": "x" * (2 << 20)}]}, "more than 1048576 characters"),
    "digest of another type": ({"messages": [SAY], "state_digest": 7}, "state_digest is no text"),
    "not found": ((404, b"{}"), "responded with 404"),
    "failed": ((500, b"{}"), "responded with 500"),
    "elsewhere": ((302, b"{}"), "redirects are not followed"),
}


@pytest.mark.parametrize("kind", STEPS)
async def test_a_bad_answer_to_a_step_is_an_error_and_the_step_may_be_asked_again(lying, kind):
    lie, reason = STEPS[kind]
    lies = [lie]
    world = lying("/step", lambda said: lies.pop() if lies else said)
    assert (await world.open()).status == OK
    answer = await world.step(0, "101")
    assert (answer.status, reason in answer.reason, answer.HasField("reward")) == (ERROR, True, False), answer
    assert len(answer.reason) < 1000
    again = await world.step(0, "101")
    assert (again.status, len(again.messages)) == (OK, 1)


async def test_a_call_without_a_result_and_one_with_two_are_errors(lying):
    for change in (lambda said: {**said, "messages": []}, lambda said: {**said, "messages": said["messages"] * 2}):
        world = lying("/step", change)
        await world.open()
        answer = await world.step(0, "", ("reveal", {}))
        assert (answer.status, "'c0.0'" in answer.reason) == (ERROR, True), answer


async def test_its_own_verdicts_pass_with_their_reasons(lying):
    for status, expected in (("invalid", INVALID), ("error", ERROR)):
        world = lying("/step", lambda said, status=status: {"status": status, "reason": "the row has no answer", "reward": 1})
        await world.open()
        answer = await world.step(0, "101")
        assert (answer.status, answer.reason, answer.HasField("reward")) == (expected, "the row has no answer", False)


OPENINGS = {
    "no session": {"messages": []},
    "session of another type": {"session": 7},
    "a tool's result": {"session": "s", "messages": [{"role": "tool", "content": "x"}]},
}


@pytest.mark.parametrize("kind", OPENINGS)
async def test_a_bad_answer_to_an_open_is_an_error(lying, kind):
    opened = await lying("/open", lambda _: OPENINGS[kind]).open()
    assert (opened.status, opened.session, "answered /open wrongly" in opened.reason) == (ERROR, "", True)


async def test_a_session_whose_name_is_given_again_is_lost_and_never_shared_by_two_episodes(lying):
    world = lying("/open", lambda _: {"session": "s"})
    await world.open()
    first, later = world.session, await world.open(player="after a worker that died")
    assert later.status == OK
    lost = await world.step(0, "101", session=first)
    assert (lost.status, "to a later /open" in lost.reason) == (ERROR, True)
    other = await world.open("train.0.0.1")
    assert (other.status, "'s' is another episode's" in other.reason) == (ERROR, True)
    assert (await world.step(0, "101", session=later.session)).status == ERROR, "its state is the other's now"


DESCRIPTIONS = {
    "no name": {"tools": []},
    "tools as an object": {"name": "x", "tools": {}},
    "a tool without parameters": {"name": "x", "tools": [{"name": "a", "description": "b"}]},
    "two of a name": {"name": "x", "tools": [{"name": "a", "description": "b", "parameters": {}}] * 2},
    "another determinism": {"name": "x", "determinism": "quantum"},
    "no JSON": (200, b"<html>"),
}


@pytest.mark.parametrize("kind", DESCRIPTIONS)
async def test_a_bad_description_is_refused(lying, kind):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lying("/describe", lambda _: DESCRIPTIONS[kind]).describe()
    assert caught.value.code() == FAILED_PRECONDITION
    assert "answered /describe wrongly" in caught.value.details()


async def test_without_a_word_about_determinism_it_has_none_and_its_digest_is_its_own(lying):
    described = await lying("/describe", lambda _: {"name": "x", "digest": "d"}).describe()
    assert (described.determinism, described.digest, list(described.tools)) == (pb.DETERMINISM_NONE, "d", [])


async def test_its_own_digest_of_its_state_passes(lying):
    world = lying("/step", lambda said: said | {"state_digest": "mine"})
    await world.open()
    assert (await world.step(0, "101")).state_digest == "mine"


async def test_a_server_that_does_not_answer_in_time_is_an_error(lying):
    world = lying("/step", lambda _: time.sleep(3) or {}, step_seconds=1.0)
    await world.open()
    answer = await world.step(0, "101")
    assert (answer.status, "within 1.0 s" in answer.reason) == (ERROR, True)


async def test_a_server_that_is_not_there_is_an_error_and_may_come(episode, free_port):
    world = episode({"service": f"http://127.0.0.1:{free_port()}", "step_seconds": 1.0}, run_id="absent")
    assert (await world.open()).status == ERROR
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.describe()
    assert caught.value.code() == UNAVAILABLE


async def test_an_address_that_is_not_allowed_is_refused(episode):
    for address in (
        "http://169.254.169.254/latest",
        "http://[fd00:ec2::254]/x",
        "http://10.0.0.1:80/x",
        "http://user:password@127.0.0.1:1/x",
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await episode({"service": address}, run_id=address).describe()
        assert (caught.value.code(), "scorer" in caught.value.details()) == (FAILED_PRECONDITION, False)


async def test_the_server_is_asked_what_the_contract_says(episode, serve_json, guessing_world):
    world = episode({"service": serve_json(guessing_world) + "/"}, run_id="asked")
    await world.open("train.3.1.2", attempt=4)
    await world.step(0, "Hm.", ("compare", '{"guess":  3}'), ("x", "{", 2), finish="stop")
    await world.step(1, "5", end_reason="max_turns")
    await world.close()
    calls = [
        {"call_id": "c0.0", "name": "compare", "arguments": '{"guess":  3}', "status": "ok"},
        {"call_id": "c0.1", "name": "x", "arguments": "{", "status": "malformed"},
    ]
    step = {"session": "train.3.1.2/4", "is_last": False, "end_reason": ""}
    assert guessing_world.asked == [
        ("POST", "/open", {"run_id": "asked", "episode_id": "train.3.1.2", "attempt": 4, "item": {"most": 100}, "seed": 7}),
        (
            "POST",
            "/step",
            step | {"turn": 0, "request_id": "train.3.1.2.4.0", "assistant": {"text": "Hm.", "calls": calls, "finish": "stop"}},
        ),
        (
            "POST",
            "/step",
            {
                "session": "train.3.1.2/4",
                "is_last": True,
                "end_reason": "max_turns",
                "turn": 1,
                "request_id": "train.3.1.2.4.1",
                "assistant": {"text": "5", "calls": [], "finish": "stop"},
            },
        ),
        ("POST", "/close", {"session": "train.3.1.2/4"}),
    ]


@pytest.mark.parametrize("path", ["/open", "/step"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_refuses_work_for_now_is_waited_for(lying, path, status):
    world = lying(path, lambda said: (status, b"{}"))
    answer = await world.open()
    if path == "/step":
        assert answer.status == OK
        answer = await world.step(0, "1")
    assert (answer.status, answer.is_away) == (ERROR, True)
