"""Resources servers of NeMo Gym: by servers of ours that say what Gym's say, and by Gym's own package where there is one."""

import asyncio
import json
import os

import grpc
import pytest

from gradbus.v1 import environment_service_pb2 as pb

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
NEMO_GYM = os.environ.get("GRADBUS_TEST_NEMO_GYM", "")
"""A Python that imports nemo_gym and resources_servers."""
COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
ADD = {"type": "function", "name": "add", "description": "", "parameters": COUNT, "strict": True}
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Play."}]}, "answer": "7"}
TOOL_ROW = {"responses_create_params": {"input": "Count.", "instructions": "Be brief.", "tools": [ADD]}, "answer": "7"}


class FakeServer:
    """Answers `/openapi.json` and, by `answers[path]`, one request after another; keeps what it was asked, with its cookies."""

    def __init__(self, *paths):
        self.paths = paths
        self.asked = []
        self.answers = {}
        self.given = 0

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        cookie = dict(scope["headers"]).get(b"cookie", b"").decode()
        if scope["path"] == "/openapi.json":
            said = {"openapi": "3.1.0", "paths": {path: {} for path in self.paths}}
        else:
            self.asked.append((scope["path"], json.loads(body), cookie))
            said = self.answers[scope["path"]].pop(0) if self.answers.get(scope["path"]) else {}
        if isinstance(said, float):
            await asyncio.sleep(said)
            said = {}
        status, content = said if isinstance(said, tuple) else (200, said)
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = [(b"content-length", str(len(content)).encode()), (b"location", b"/elsewhere")]
        if not cookie and scope["path"] != "/openapi.json":
            self.given += 1
            headers.append((b"set-cookie", b"Turns___turns=s%d.signed; path=/; Max-Age=1209600; httponly" % self.given))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def step(observation=None, reward=0.0, terminated=False, truncated=False, **info):
    return {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated, "info": info}


@pytest.fixture
def turns():
    return FakeServer("/reset", "/step", "/aggregate_metrics")


@pytest.fixture
def tools():
    return FakeServer("/seed_session", "/verify", "/add")


@pytest.fixture
def world(episode, http_server):
    def make(server, row=ROW, **section):
        url = http_server(server)
        return episode({"service": f"nemo-gym+{url}", "step_seconds": 3.0, **section}, run_id=url, item=row)

    return make


def said(messages):
    return [(one.role, one.content) for one in messages]


async def test_turns_of_a_gymnasium_server(world, turns):
    episode = world(turns)
    described = await episode.describe()
    assert (described.name, described.determinism, list(described.tools)) == ("NeMo Gym", pb.DETERMINISM_RECORDED, [])
    turns.answers["/reset"] = [{"observation": "Begin.", "info": {}}]
    assert said((await episode.open("train.0.0.1")).messages) == [("user", "Play."), ("user", "Begin.")]
    turns.answers["/step"] = [
        step(tool_outputs=[{"call_id": "c0.1", "output": "two"}, {"call_id": "c0.0", "output": "one"}], observation="Go on.", reward=0.5),
        step(reward=1.0, truncated=True),
    ]
    answer = await episode.step(0, "Hm.", ("add", {"count": 1}), ("add", {"count": 2}), ("x", "{", 2))
    assert (answer.status, answer.reward, answer.done) == (OK, 0.5, False)
    assert [one.content for one in answer.messages[:2]] == ["one", "two"]
    assert json.loads(answer.messages[2].content)["error"] == "malformed_call"
    assert said(answer.messages[3:]) == [("user", "Go on.")]
    last = await episode.step(1, "7", finish="length", end_reason="length")
    assert (last.status, last.reward, last.done, list(last.messages)) == (OK, 1.0, True, [])
    await episode.close()
    (reset, first, second) = turns.asked
    assert (reset, first[2], second[2]) == (("/reset", ROW, ""), "Turns___turns=s1.signed", "Turns___turns=s1.signed")
    assert {key: first[1][key] for key in ROW} == ROW
    text, *calls = first[1]["response"]["output"]
    assert (text["content"][0]["text"], [call["arguments"] for call in calls]) == ("Hm.\n{", ['{"count": 1}', '{"count": 2}'])
    assert second[1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert "_ng_step_request_id" not in first[1]


async def test_a_server_may_let_a_step_be_asked_again_and_want_to_be_closed(world, turns):
    episode = world(turns)
    turns.answers["/reset"] = [{"observation": None, "info": {"supports_step_idempotency": True, "supports_explicit_close": True}}]
    await episode.open("train.0.0.2", attempt=1)
    turns.answers["/step"] = [(503, b""), (200, b"{"), step(observation="on")]
    assert [(await episode.step(0, "a")).status for _ in range(3)] == [ERROR, ERROR, OK]
    assert {one[1]["_ng_step_request_id"] for one in turns.asked[1:]} == {"train.0.0.2.1.0"}
    await episode.close()
    assert turns.asked[-1][:2] == ("/close", {})


async def test_without_that_a_step_that_failed_loses_the_episode(world, turns):
    episode = world(turns)
    await episode.open()
    turns.answers["/step"] = [(200, b"{"), step(observation="on")]
    assert (await episode.step(0, "a")).status == ERROR
    again = await episode.step(0, "a")
    assert (again.status, "open the episode again" in again.reason) == (ERROR, True)
    assert ((await episode.open(attempt=1)).status, (await episode.step(0, "a")).status) == (OK, OK)
    turns.answers["/step"] = [(429, b""), step(observation="on")]
    busy = await episode.step(1, "a")
    assert (busy.status, busy.is_away, (await episode.step(1, "a")).status) == (ERROR, True, OK)
    turns.answers["/step"] = [(504, b""), step(observation="on")]
    assert ((await episode.step(2, "a")).status, (await episode.step(2, "a")).status) == (ERROR, ERROR), "it may have been executed"


async def test_tools_come_with_the_row_and_the_end_is_verified(world, tools):
    episode = world(tools, TOOL_ROW)
    opened = await episode.open()
    assert (list(opened.messages), said(opened.conversation.messages)) == ([], [("system", "Be brief."), ("user", "Count.")])
    assert json.loads(opened.conversation.tools_json) == [{"name": "add", "description": "add", "parameters": COUNT}]
    tools.answers = {
        "/add": [{"sum": 3}, (422, {"detail": "count is missing"})],
        "/verify": [{"reward": 0.5, "reward_components": {"x": 2}}],
    }
    answer = await episode.step(0, "", ("add", {"count": 3}), ("add", {}), ("add", "{"), ("verify", {}), ("../close", {}))
    assert (answer.status, answer.HasField("reward")) == (OK, False)
    assert [one.content for one in answer.messages[:2]] == ['{"sum": 3}', '{"detail": "count is missing"}']
    assert [json.loads(one.content)["error"] for one in answer.messages[2:]] == ["invalid_arguments", "unknown_tool", "unknown_tool"]
    last = await episode.step(1, "3")
    assert (last.status, last.reward, dict(last.components), list(last.messages)) == (OK, 0.5, {"x": 2.0}, [])
    assert [path for path, _, _ in tools.asked] == ["/seed_session", "/add", "/add", "/verify"]
    assert {cookie for _, _, cookie in tools.asked[1:]} == {"Turns___turns=s1.signed"}
    output = tools.asked[-1][1]["response"]["output"]
    kinds = ["function_call"] * 5 + ["function_call_output"] * 5 + ["message"]
    assert ([one["type"] for one in output], tools.asked[-1][1]["answer"]) == (kinds, "7")


async def test_the_state_is_verified_when_there_was_no_room_for_a_turn(world, tools):
    episode = world(tools, TOOL_ROW)
    await episode.open()
    tools.answers = {"/add": [{"sum": 3}], "/verify": [{"reward": 0.0}]}
    await episode.step(0, "", ("add", {"count": 3}))
    last = await episode.step(1, finish="none", end_reason="context")
    assert (last.reward, [one["type"] for one in tools.asked[-1][1]["response"]["output"]]) == (
        0.0,
        ["function_call", "function_call_output"],
    )


MASKS = [({"reward": 0.0, "mask_sample": True}, INVALID), ({"reward": 1.0, "instance_config": {"mask_sample": True}}, INVALID)]
FAILURES = [({"reward": 0.0, "_ng_failure_class": "judge_failed"}, ERROR), ({"reward": 0.0, "failure_kind": "infra"}, ERROR)]


@pytest.mark.parametrize(("answer", "status"), [*MASKS, *FAILURES])
async def test_a_judgement_that_the_server_takes_back_is_none(world, tools, answer, status):
    episode = world(tools, TOOL_ROW)
    await episode.open()
    tools.answers["/verify"] = [answer]
    judged = await episode.step(0, "3")
    assert (judged.status, judged.HasField("reward")) == (status, False)


@pytest.mark.parametrize("path", ["/add", "/verify"])
async def test_code_that_raises_is_an_error_and_the_same_again_invalid(world, tools, path):
    episode = world(tools, TOOL_ROW)
    found = []
    for attempt in range(2):
        await episode.open(attempt=attempt)
        tools.answers[path] = [(500, "RuntimeError('no such table')")]
        answer = await (episode.step(0, "", ("add", {"count": 1})) if path == "/add" else episode.step(0, "3"))
        found.append(answer.status)
        assert "no such table" in answer.reason
    assert found == [ERROR, INVALID]


BROKEN = {
    "no JSON": (200, b"\x00"),
    "no object": [],
    "NaN": (200, b'{"reward": NaN}'),
    "huge reward": step(reward=1e9),
    "reward of another type": step(reward="1"),
    "observation of another type": step(observation=7),
    "flag of another type": step(terminated="no"),
    "outputs of another type": step(tool_outputs={"c0.0": "x"}),
    "output of another type": step(tool_outputs=[{"call_id": "c0.0", "output": 7}]),
    "output of another call": step(tool_outputs=[{"call_id": "c9.9", "output": "x"}]),
    "huge": (200, b" " * (9 << 20)),
    "elsewhere": (302, b""),
    "not found": (404, b"{}"),
    "hangs": 30.0,
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_bad_answer_is_an_error(world, turns, kind):
    episode = world(turns)
    await episode.open()
    turns.answers["/step"] = [BROKEN[kind]]
    answer = await episode.step(0, "", ("add", {"count": 1}))
    assert (answer.status, answer.HasField("reward"), bool(answer.reason)) == (ERROR, False, True)


ROWS = [
    {"answer": "7"},
    {"responses_create_params": {"input": 7}},
    {"responses_create_params": {"input": [{"type": "function_call_output", "output": "x"}]}},
    {"responses_create_params": {"input": "x", "tools": [{"type": "web_search"}]}},
    {"responses_create_params": {"input": "x", "tools": [{**ADD, "name": "../verify"}]}},
    {"responses_create_params": {"input": "x", "tools": [{**ADD, "name": "verify"}]}},
]


@pytest.mark.parametrize("row", ROWS)
async def test_a_row_that_cannot_be_played_is_invalid(world, tools, row):
    opened = await world(tools, row).open()
    assert (opened.status, bool(opened.reason), tools.asked) == (INVALID, True, [])


async def test_a_server_of_another_kind_and_a_forbidden_address_are_refused(world, episode):
    other = world(FakeServer("/chat"))
    for refused in (other, episode({"service": "nemo-gym+http://169.254.169.254:80"}, run_id="metadata")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await refused.describe()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
def nemo_gym(start_package):
    """Starts a resources server on Gym's own package."""
    return lambda kind: f"nemo-gym+http://{start_package(NEMO_GYM, 'nemo_gym_server.py', kind)}"


@pytest.mark.skipif(not NEMO_GYM, reason="GRADBUS_TEST_NEMO_GYM names no Python with NeMo Gym")
async def test_a_gymnasium_server_of_gyms_own_package(episode, nemo_gym):
    world = episode({"service": nemo_gym("turns")}, run_id="turns", item={"prompt": "Add.", "begin": 3})
    assert (await world.describe()).name == "NeMo Gym"
    assert said((await world.open()).messages) == [("user", "Add."), ("user", "The sum is 3.")]
    added = await world.step(0, "", ("add", {"number": 4}))
    assert (added.status, said(added.messages), added.reward) == (OK, [("tool", '{"added": true}')], 0.0)
    wrong = await world.step(1, "8")
    assert (wrong.reward, said(wrong.messages)) == (pytest.approx(-0.1), [("user", "That is not the sum.")])
    right = await world.step(2, "7")
    assert (right.status, right.reward, right.done) == (OK, 1.0, True)
    await world.open("train.0.0.1")
    crashed = await world.step(0, "crash")
    assert (crashed.status, "an unlucky text" in crashed.reason) == (ERROR, True)


@pytest.mark.skipif(not NEMO_GYM, reason="GRADBUS_TEST_NEMO_GYM names no Python with NeMo Gym")
async def test_gyms_own_example_of_tools(episode, nemo_gym):
    count = {"name": "increment_counter", "type": "function", "description": "", "parameters": COUNT, "strict": True}
    read = {
        "name": "get_counter_value",
        "type": "function",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }
    row = {"responses_create_params": {"input": "add 1 then add 2", "tools": [count, read]}, "expected_count": 6, "initial_count": 3}
    world = episode({"service": nemo_gym("counter")}, run_id="counter", item=row)
    await world.describe()
    assert len(json.loads((await world.open()).conversation.tools_json)) == 2
    answer = await world.step(0, "", ("increment_counter", {"count": 1}), ("increment_counter", {"count": "x"}), ("nothing", {}))
    assert (answer.status, answer.messages[0].content) == (OK, '{"success":true}')
    assert ("int_parsing" in answer.messages[1].content, json.loads(answer.messages[2].content)["error"]) == (True, "unknown_tool")
    counted = await world.step(1, "", ("increment_counter", {"count": 2}), ("get_counter_value", {}))
    assert counted.messages[1].content == '{"count":6}'
    judged = await world.step(2, "It is 6.")
    assert (judged.status, judged.reward) == (OK, 1.0), judged
