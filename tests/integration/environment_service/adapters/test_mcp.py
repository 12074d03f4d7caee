"""MCP over streamable HTTP and stdio: by servers of ours that say what the protocol's package says, and by that package where it is."""

import asyncio
import json
import os
from pathlib import Path

import grpc
import psutil
import pytest

from gradbus.sandbox.budget import ProcessBudget
from gradbus.sandbox.commands.run import found_level
from gradbus.v1 import environment_service_pb2 as pb
from gradbus_environment.worlds.mcp_stdio import McpCommand, McpOverStdio
from gradbus_environment.worlds.sandboxes import Sandboxes

OK, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_ERROR
HAS_NAMESPACES = asyncio.run(found_level())[0] is not None
stdio = pytest.mark.skipif(not HAS_NAMESPACES, reason="this kernel gives no namespaces")
PYTHONS = [python for python in os.environ.get("GRADBUS_TEST_MCP", "").split(":") if python]
"""Pythons with the package `mcp`."""
PACKAGE = Path(__file__).with_name("mcp_server.py").read_text()
NUMBER = {"properties": {"number": {"type": "integer"}}, "required": ["number"], "type": "object"}
PAGES = [
    {"tools": [{"name": "add", "description": "Adds.", "inputSchema": NUMBER}], "nextCursor": "2"},
    {"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]},
]
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "sums", "version": "1"}}


def text(said, **more):
    return {"content": [{"type": "text", "text": said}], **more}


class FakeServer:
    """Greets and lists its tools; answers calls by `answers`. Keeps what it was asked, with session and version."""

    def __init__(self):
        self.asked = []
        self.answers = []
        self.greeting = GREETING
        self.pages = list(PAGES)
        self.sessions = 0
        self.is_stream = True

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        headers = dict(scope["headers"])
        assert scope["path"] == "/mcp/", "the path is the URL's, with its slash"
        assert b"text/event-stream" in headers[b"accept"]
        asked = json.loads(body) if body else {"method": scope["method"]}
        self.asked.append(
            (
                asked["method"],
                asked.get("params"),
                *(headers.get(name, b"").decode() for name in (b"mcp-session-id", b"mcp-protocol-version")),
            )
        )
        said = self.answer(asked)
        if isinstance(said, float):
            await asyncio.sleep(said)
            said = {"result": text("late")}
        status, content = said if isinstance(said, tuple) else (200, {"jsonrpc": "2.0", "id": asked.get("id"), **said})
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            if self.is_stream:
                notice = b'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\r\n\r\n'
                content = b"id: 1\ndata: \n\n" + notice + b"event: message\ndata: " + content + b"\n\n"
        kind = b"text/event-stream" if self.is_stream else b"application/json"
        found = [(b"content-length", str(len(content)).encode()), (b"content-type", kind), (b"location", b"/elsewhere")]
        if asked["method"] == "initialize":
            self.sessions += 1
            found.append((b"mcp-session-id", f"s{self.sessions}".encode()))
        await send({"type": "http.response.start", "status": status, "headers": found})
        await send({"type": "http.response.body", "body": content})

    def answer(self, asked):
        match asked["method"]:
            case "initialize":
                return {"result": self.greeting}
            case "tools/list":
                return {"result": self.pages[int(asked["params"].get("cursor", 1)) - 1]}
            case "tools/call":
                return self.answers.pop(0) if self.answers else asked["params"]["arguments"]["answer"]
        return 202, b""


# Speaks as FakeServer does; of `add` the argument `answer` is the answer, if it has one, and `deed` is Python whose value is the result.
SPOKEN = """
import json, sys, time
greeting, pages = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked: continue
    if asked["method"] == "initialize": said = {"result": greeting}
    elif asked["method"] == "tools/list": said = {"result": pages[int(asked["params"].get("cursor", 1)) - 1]}
    else:
        given = asked["params"]["arguments"]
        said = given["answer"] if "answer" in given else {"result": {"content": [{"type": "text", "text": str(eval(given["deed"]))}]}}
    if isinstance(said, float): time.sleep(said)
    if isinstance(said, str): print(said, flush=True); continue
    for more in ({"method": "notifications/message", "params": {}}, {"id": "s", "method": "ping"}, {"id": asked["id"], **said}):
        print(json.dumps({"jsonrpc": "2.0", **more}), flush=True)
"""


def spoken(greeting=GREETING, pages=PAGES):
    return {"command": ["python", "-c", SPOKEN, json.dumps([greeting, pages])]}


@pytest.fixture(scope="module")
def service_settings():
    own = {
        f"package-{n}": {"command": [python, "-c", PACKAGE, "stdio"], "paths": [str(Path(python).parents[1])]}
        for n, python in enumerate(PYTHONS)
    }
    commands = {
        "sums": spoken(),
        "old": spoken({**GREETING, "protocolVersion": "2024-11-05"}),
        "future": spoken({**GREETING, "protocolVersion": "2099-01-01"}),
        "toolless": spoken({**GREETING, "capabilities": {}}),
        "greedy": {"command": ["python", "-c", "x = [bytearray(1 << 20) for _ in range(1000)]; input()"], "memory_mib": 64},
        "absent": {"command": ["/opt/no/such/program"]},
        "keyless": {"command": ["python", "-c", "import sys; sys.stderr.write('x' * 300_000); sys.exit('MY_KEY is not set')"]},
    }
    return {"GRADBUS_MCP_COMMANDS": json.dumps(commands | own), "GRADBUS_MAX_MCP_PROCESSES": "6", "GRADBUS_MAX_CHILDREN": "1"}


@pytest.fixture(params=["http", pytest.param("stdio", marks=stdio)])
def either(request, episode, http_server):
    """The same server by both transports."""
    url = "mcp+stdio://sums" if request.param == "stdio" else f"mcp+{http_server(FakeServer())}/mcp/"
    return episode({"service": url, "step_seconds": 5.0}, run_id=url)


@pytest.fixture
def fake():
    return FakeServer()


@pytest.fixture
def world(episode, http_server, fake):
    url = f"mcp+{http_server(fake)}/mcp/"
    return episode({"service": url, "step_seconds": 3.0}, run_id=url)


def called(answer):
    return [one.content for one in answer.messages]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_tools_of_all_pages_and_a_session_for_each_episode(world, fake, is_stream):
    fake.is_stream = is_stream
    described = await world.describe()
    assert [(one.name, one.description) for one in described.tools] == [("add", "Adds."), ("plain", "plain")]
    assert (described.name, described.determinism, json.loads(described.tools[0].parameters_json)) == (
        "sums",
        pb.DETERMINISM_RECORDED,
        NUMBER,
    )
    opened = await world.open()
    assert (opened.status, list(opened.messages)) == (OK, [])
    fake.answers = [{"result": text("3")}, {"result": {"content": [], "structuredContent": {"sum": 5}}}]
    answer = await world.step(0, "Hm.", ("add", {"number": 3}), ("plain", {}))
    assert (answer.status, called(answer), answer.HasField("reward"), answer.done) == (OK, ["3", '{"sum":5}'], False, False)
    last = await world.step(1, "5")
    assert (last.status, list(last.messages), last.HasField("reward")) == (OK, [], False)
    await world.close()
    methods = ["initialize", "notifications/initialized", "tools/list", "tools/list", "DELETE"]
    assert [one[0] for one in fake.asked] == [*methods, *methods[:2], "tools/call", "tools/call", "DELETE"]
    assert [one[2:] for one in fake.asked[5:]] == [("", ""), *[("s2", "2025-11-25")] * 4]
    assert fake.asked[5][1]["capabilities"] == {}
    assert fake.asked[7][1] == {"name": "add", "arguments": {"number": 3}}


async def test_what_the_policy_got_wrong_is_told_to_it(world, fake):
    await world.open()
    refused = {"error": {"code": -32602, "message": "Unknown tool"}}
    picture = {"result": {"content": [{"type": "image", "data": "", "mimeType": "image/png"}, {"type": "text", "text": "A cat."}]}}
    fake.answers = [{"result": text("no such file", isError=True)}, refused, picture]
    answer = await world.step(0, "", *[("add", {"number": n}) for n in range(3)], ("add", "{"), ("add", "[1]"))
    found = [json.loads(one)["error"] for one in (*called(answer)[:2], *called(answer)[3:])]
    assert (answer.status, found) == (OK, ["tool_failed", "invalid_arguments", "invalid_arguments", "invalid_arguments"])
    assert called(answer)[2].endswith('which is no text"}\nA cat.')
    assert len([one for one in fake.asked if one[0] == "tools/call"]) == 3


async def test_of_a_turn_that_was_cut_off_nothing_is_executed(world, fake):
    await world.open()
    answer = await world.step(0, "", ("add", {"number": 3}), finish="length", end_reason="length")
    assert (answer.status, fake.asked[-1][0]) == (OK, "notifications/initialized")


BROKEN = {
    "internal error": {"error": {"code": -32603, "message": "out of disk"}},
    "session is gone": (404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}),
    "no JSON": (200, b"data: {\n\n"),
    "no event": (200, b": nothing\n\n"),
    "answer to another request": (200, {"jsonrpc": "2.0", "id": 77, "result": text("x")}),
    "result of another type": {"result": []},
    "content of another type": {"result": {"content": "x"}},
    "part of another type": {"result": {"content": ["x"]}},
    "NaN": (200, b'data: {"id": 2, "result": {"content": [], "structuredContent": NaN}}\n\n'),
    "huge": (200, b" " * (9 << 20)),
    "elsewhere": (307, b""),
    "unauthorized": (401, b"{}"),
    "hangs": 30.0,
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_whatever_else_is_an_error_and_the_session_is_not_used_again(world, fake, kind):
    await world.open()
    fake.answers = [BROKEN[kind]]
    answer = await world.step(0, "", ("add", {"number": 1}))
    assert (answer.status, answer.HasField("reward"), bool(answer.reason)) == (ERROR, False, True)
    again = await world.step(0, "", ("add", {"number": 1}))
    assert (again.status, "open the episode again" in again.reason) == (ERROR, True)
    fake.answers = [{"result": text("1")}]
    assert ((await world.open(attempt=1)).status, called(await world.step(0, "", ("add", {"number": 1})))) == (OK, ["1"])


async def test_a_server_that_is_busy_is_waited_for_unless_a_call_was_made(world, fake):
    await world.open()
    fake.answers = [(503, b""), {"result": text("1")}, (503, b"")]
    busy = await world.step(0, "", ("add", {"number": 1}))
    assert (busy.status, busy.is_away) == (ERROR, True)
    midway = await world.step(0, "", ("add", {"number": 1}), ("add", {"number": 2}))
    assert midway.status == ERROR
    assert "open the episode again" in (await world.step(0, "", ("add", {"number": 1}), ("add", {"number": 2}))).reason


@pytest.mark.parametrize("status", [502, 504])
async def test_a_call_that_a_proxy_lost_is_not_made_again(world, fake, status):
    await world.open()
    fake.answers = [(status, b""), {"result": text("twice")}]
    assert (await world.step(0, "", ("add", {"number": 1}))).status == ERROR
    assert "open the episode again" in (await world.step(0, "", ("add", {"number": 1}))).reason


GREETINGS = [{}, {**GREETING, "protocolVersion": "2099-01-01"}, {**GREETING, "capabilities": {}}]


@pytest.mark.parametrize("greeting", GREETINGS)
async def test_a_server_of_another_kind_is_refused(world, fake, greeting):
    fake.greeting = greeting
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.describe()
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert (await world.open()).status == ERROR


@pytest.mark.parametrize(
    "page", [{"tools": {}}, {"tools": [7]}, {"tools": [{"name": "x", "inputSchema": 7}]}, {"tools": [], "nextCursor": "1"}]
)
async def test_tools_that_are_none_are_refused(world, fake, page):
    fake.pages = [page]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.describe()
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_an_address_that_is_not_allowed_is_refused(episode):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await episode({"service": "mcp+http://169.254.169.254:80/mcp"}, run_id="metadata").describe()
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.skipif(not PYTHONS, reason="GRADBUS_TEST_MCP names no Python with mcp")
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("form", ["stream", "json"])
async def test_a_server_on_the_protocols_own_package(episode, start_package, python, form):
    address = start_package(python, "mcp_server.py", form)
    world = episode({"service": f"mcp+http://{address}/mcp"}, run_id=address)
    described = await world.describe()
    assert [(one.name, one.description) for one in described.tools] == [("add", "Adds to the sum of the session."), ("fail", "Fails.")]
    for n in range(2):
        assert (await world.open(f"train.0.0.{n}")).status == OK
        answer = await world.step(0, "", ("add", {"number": 3}), ("add", {"number": 4}), ("fail", {"text": "x"}), ("add", {"number": "x"}))
        assert (answer.status, called(answer)[:2]) == (OK, ["3", "7"]), "a session of its own"
        assert [json.loads(one)["error"] for one in called(answer)[2:]] == ["tool_failed"] * 2
    await world.close()


async def test_both_transports_list_the_same_tools_and_bring_the_same_answers(either):
    described = await either.describe()
    assert [(one.name, one.description) for one in described.tools] == [("add", "Adds."), ("plain", "plain")]
    assert (described.name, described.determinism) == ("sums", pb.DETERMINISM_RECORDED)
    opened = await either.open()
    assert (opened.status, list(opened.messages)) == (OK, [])
    refused = {"error": {"code": -32602, "message": "Unknown tool"}}
    answers = [{"result": text("3")}, {"result": text("no such file", isError=True)}, refused]
    answer = await either.step(0, "", *[("add", {"answer": one}) for one in answers], ("add", "{"))
    assert (answer.status, called(answer)[0], answer.HasField("reward")) == (OK, "3", False)
    assert [json.loads(one)["error"] for one in called(answer)[1:]] == ["tool_failed", "invalid_arguments", "invalid_arguments"]
    assert (await either.step(1, "5")).status == OK


BROKEN_ALIKE = ("internal error", "result of another type", "content of another type", "part of another type", "hangs")


@pytest.mark.parametrize("kind", BROKEN_ALIKE)
async def test_what_is_broken_is_an_error_by_both_and_the_next_attempt_has_a_new_session(either, kind):
    await either.open(kind)
    answer = await either.step(0, "", ("add", {"answer": BROKEN[kind]}))
    assert (answer.status, answer.HasField("reward"), bool(answer.reason)) == (ERROR, False, True)
    assert "open the episode again" in (await either.step(0, "", ("add", {"answer": BROKEN[kind]}))).reason
    assert (await either.open(kind, attempt=1)).status == OK
    assert called(await either.step(0, "", ("add", {"answer": {"result": text("1")}}))) == ["1"]


def started(service):
    """Processes of commands that the service started."""
    return [one for one in psutil.Process(service[0].pid).children(recursive=True) if SPOKEN in one.cmdline()]


DEEDS = {
    "__import__('socket').socket()": "PermissionError",
    "open('/etc/passwd').read()": "FileNotFoundError",
    "[name for name in __import__('os').environ if 'GRADBUS' in name]": "[]",
    "open('/proc/1/environ').read()": "FileNotFoundError",
    "__import__('os').getuid() and 'nobody'": "nobody",
}


@stdio
async def test_a_command_is_confined(episode, service):
    attempt = "(lambda f: f())(lambda: __import__('contextlib') and %s)"
    for deed, found in DEEDS.items():
        world = episode({"service": "mcp+stdio://sums", "step_seconds": 5.0}, run_id="confined")
        await world.open(f"confined.{deed}")
        answer = await world.step(0, "", ("add", {"deed": attempt % deed}))
        if answer.status == OK:
            assert called(answer) == [found]
        else:
            assert (found.endswith("Error"), "has ended" in answer.reason) == (True, True), (deed, answer)
        await world.close()
    assert started(service) == []


@stdio
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("future", "version '2099-01-01'"),
        ("toolless", "has no tools"),
        ("other", "names no MCP server 'other'"),
        ("greedy", "has ended"),
        ("absent", "has ended"),
        ("keyless", r"has ended \(x+MY_KEY is not set\)"),
    ],
)
async def test_a_command_that_cannot_be_used_says_why_and_leaves_nothing(episode, service, name, reason):
    with pytest.raises(grpc.aio.AioRpcError, match=reason):
        await episode({"service": f"mcp+stdio://{name}"}, run_id=name).describe()
    assert started(service) == []


@stdio
async def test_an_older_version_is_understood(episode):
    assert (await episode({"service": "mcp+stdio://old"}, run_id="old").describe()).name == "sums"


@stdio
async def test_a_killed_command_is_an_error_and_no_more_than_there_is_room_for_are_started(episode, service):
    worlds = [episode({"service": "mcp+stdio://sums", "step_seconds": 20.0}, run_id="room") for _ in range(7)]
    opened = [await world.open(f"room.{n}") for n, world in enumerate(worlds)]
    assert [(one.status, one.is_away) for one in opened] == [(OK, False)] * 6 + [(ERROR, True)]
    python = episode("class Environment:\n    def reset(self, item, seed):\n        pass", run_id="python")
    assert (await python.open("python.0")).status == OK, "it has a place of its own"
    stuck = asyncio.ensure_future(worlds[0].step(0, "", ("add", {"answer": 60.0})))
    await asyncio.sleep(0.5)
    for process in started(service):
        process.kill()
    answer = await stuck
    assert (answer.status, "has ended" in answer.reason) == (ERROR, True), answer
    for world in worlds[:6]:
        await world.close()
    assert started(service) == []
    assert (await worlds[6].open("room.6", attempt=1)).status == OK


@stdio
async def test_an_end_that_is_given_up_gives_its_place_back():
    budget = ProcessBudget(1)
    server = McpOverStdio("sums", McpCommand(tuple(spoken()["command"])), Sandboxes(1), budget)
    ending = asyncio.ensure_future((await server.connect()).end())
    await asyncio.sleep(0)
    assert not budget.has_room
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert budget.has_room


@stdio
@pytest.mark.parametrize("number", range(len(PYTHONS)))
async def test_a_command_on_the_protocols_own_package(episode, number):
    world = episode({"service": f"mcp+stdio://package-{number}"}, run_id="package")
    assert [one.name for one in (await world.describe()).tools] == ["add", "fail"]
    for n in range(2):
        assert (await world.open(f"train.0.0.{n}")).status == OK
        answer = await world.step(0, "", ("add", {"number": 3}), ("add", {"number": 4}), ("fail", {"text": "x"}), ("add", {"number": "x"}))
        assert (answer.status, called(answer)[:2]) == (OK, ["3", "7"]), "a process of its own"
        assert [json.loads(one)["error"] for one in called(answer)[2:]] == ["tool_failed"] * 2
        await world.close()
