"""The environment service as a process, asked as a rollout worker asks, and one world in Python and over HTTP."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from gradbus.rpc import open_channel, token_hash
from gradbus.sandbox.budget import ProcessBudget
from gradbus.user_services.addresses import ENVIRONMENT, AddressPolicy
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub
from gradbus.v1.episode_pb2 import ToolCall
from gradbus_environment.registry import Registry
from gradbus_environment.worlds.factory import Capacity, WorldSettings
from gradbus_environment.worlds.python import ChildSettings
from gradbus_environment.worlds.sandboxes import Sandboxes

TOKEN = "of-the-test"
GUESSING = '''
import random

class Environment:
    """A number is to be found, by guesses or by a tool."""

    def reset(self, item, seed):
        self.number = random.randint(0, item["most"])
        return f"Find my number, at most {item['most']}."

    def compare(self, guess: int, twice: bool = False) -> dict:
        """Says how the guess compares with the number."""
        return {"sign": (guess > self.number) - (guess < self.number), "twice": twice}

    def reveal(self) -> str:
        """Tells the number."""
        return str(self.number)

    def step(self, text):
        if text == "give up":
            return None
        found = text == str(self.number)
        return {"message": "yes" if found else "no", "done": found, "reward": 1.0 if found else -0.1, "components": {"found": found}}

    def reward(self, text):
        return {"reward": 0.5, "said": len(text)}
'''


def start_service(port, **settings):
    environment = {
        **os.environ,
        "GRADBUS_LISTEN": f"127.0.0.1:{port}",
        "GRADBUS_RPC_CALLERS": json.dumps({"rollout": token_hash(TOKEN)}),
        "GRADBUS_PYTHON_ENVIRONMENTS": "true",
        "GRADBUS_ALLOW_LOOPBACK": "true",
        "GRADBUS_ALLOW_UNISOLATED_NETWORK": "true",
        **settings,
    }
    process = subprocess.Popen([sys.executable, "-m", "gradbus_environment"], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    return process


@pytest.fixture(scope="module")
def service_settings():
    """More settings of the service; a module may have its own."""
    return {}


@pytest.fixture(scope="module")
def service(free_port, service_settings):
    port = free_port()
    process = start_service(port, **service_settings)
    yield process, port
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, "SIGTERM drains and ends with 0"


@pytest.fixture
async def stub(service):
    channel = open_channel(f"127.0.0.1:{service[1]}", TOKEN)
    yield EnvironmentServiceStub(channel)
    await channel.close()


@dataclasses.dataclass
class Episode:
    """One session, asked in short."""

    stub: object
    section: dict
    run_id: str = "run"
    item: dict = dataclasses.field(default_factory=lambda: {"most": 100})
    seed: int = 7
    session: str = ""

    async def open(self, episode="train.0.0.0", attempt=0, player=""):
        request = pb.OpenRequest(run_id=self.run_id, environment_json=json.dumps(self.section), episode_id=episode, attempt=attempt)
        request.item_json, request.seed, request.player = json.dumps(self.item), self.seed, player
        answer = await self.stub.Open(request, timeout=60)
        self.session = answer.session
        return answer

    async def step(self, turn, text="", *calls, timeout=60, finish="stop", end_reason="", session=None):
        """`calls` are (name, arguments) with arguments as a value, or a text as the policy drew it."""
        request = pb.StepRequest(run_id=self.run_id, session=session or self.session, turn=turn)
        request.is_last, request.end_reason = bool(end_reason), end_reason
        request.assistant.text, request.assistant.finish = text, finish
        for n, (name, arguments, *status) in enumerate(calls):
            drawn = arguments if isinstance(arguments, str) else json.dumps(arguments)
            request.assistant.calls.append(
                ToolCall(call_id=f"c{turn}.{n}", name=name, arguments_json=drawn, status=status[0] if status else 1)
            )
        return await self.stub.Step(request, timeout=timeout)

    async def close(self):
        await self.stub.Close(pb.CloseRequest(run_id=self.run_id, session=self.session), timeout=60)

    async def describe(self):
        return await self.stub.Describe(pb.DescribeRequest(run_id=self.run_id, environment_json=json.dumps(self.section)), timeout=60)


@pytest.fixture
async def episode(stub):
    """Makes episodes of an environment; their sessions are closed at the end."""
    made = []

    def make(section, **fields):
        section = {"source": section} if isinstance(section, str) else section
        made.append(Episode(stub, section, **fields))
        return made[-1]

    yield make
    for one in made:
        if one.session:
            await one.close()


@pytest.fixture(scope="session")
def http_server():
    """Serves an ASGI application over HTTP and gives its URL."""
    started = []

    def serve(application):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off", ws="wsproto"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        started.append((server, thread))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for server, thread in started:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def start_package(free_port):
    """Starts a server that stands on a protocol's own package, `python script kind port`, and gives its host and port."""
    started = []

    def start(python, script, kind):
        port = free_port()
        command = [python, str(Path(__file__).with_name("adapters") / script), kind, str(port)]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and started[-1].poll() is None:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    return f"127.0.0.1:{port}"
            time.sleep(0.1)
        raise AssertionError("it does not start")

    yield start
    for process in started:
        process.kill()
        process.wait()


def json_application(answer):
    """An ASGI application: `answer(method, path, body)` gives (status, bytes or value)."""

    async def application(scope, receive, send):
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        said = answer(scope["method"], scope["path"], json.loads(body) if body else None)
        status, content = said if isinstance(said, tuple) else (200, said)
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = [(b"content-length", str(len(content)).encode()), (b"location", b"/elsewhere")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return application


class GuessingServer:
    """The world of GUESSING, written as a server of the user's own would be."""

    tools = (
        {"name": "compare", "description": "Says how the guess compares with the number.", "parameters": {"type": "object"}},
        {"name": "reveal", "description": "Tells the number.", "parameters": {"type": "object"}},
    )

    def __init__(self):
        self.numbers = {}
        self.asked = []

    def __call__(self, method, path, body):
        self.asked.append((method, path, body))
        return getattr(self, path.strip("/"))(body)

    def describe(self, _):
        return {"name": "guessing", "version": "1", "determinism": "seeded", "tools": list(self.tools)}

    def open(self, body):
        session = f"{body['episode_id']}/{body['attempt']}"
        self.numbers[session] = body["seed"] * 31 % (body["item"]["most"] + 1)
        most = body["item"]["most"]
        return {"session": session, "messages": [{"role": "user", "content": f"Find my number, at most {most}."}]}

    def step(self, body):
        number, text = self.numbers[body["session"]], body["assistant"]["text"]
        calls = body["assistant"]["calls"] if body["assistant"]["finish"] != "length" else []
        messages = [
            {"role": "tool", "call_id": call["call_id"], "content": self.result(number, call)} for call in calls if call["status"] == "ok"
        ]
        reward, components, done = None, {}, False
        if not body["assistant"]["calls"] and text != "give up":
            done = text == str(number)
            messages = [{"role": "user", "content": "yes" if done else "no"}]
            reward, components = (1.0 if done else -0.1), {"found": float(done)}
        if body["is_last"] or done or not (messages or body["assistant"]["calls"]):
            reward = (reward or 0.0) + 0.5
            components["said"] = float(len(text))
        return {"messages": messages, "reward": reward, "components": components, "done": done}

    def result(self, number, call):
        if call["name"] == "reveal":
            return str(number)
        try:
            guess = json.loads(call["arguments"])["guess"]
            return json.dumps({"sign": (guess > number) - (guess < number), "twice": False}, separators=(",", ":"))
        except (ValueError, KeyError, TypeError):
            return json.dumps({"error": "invalid_arguments"})

    def close(self, body):
        self.numbers.pop(body["session"], None)
        return {}


@pytest.fixture
def guessing_world():
    """The world of GUESSING as a server's answers, to be changed by a test."""
    return GuessingServer()


@pytest.fixture
def serve_json(http_server):
    """Serves `answer(method, path, body)`, which gives a value or (status, bytes), and gives its URL."""
    return lambda answer: http_server(json_application(answer))


@pytest.fixture(scope="session")
def guessing_server(http_server):
    return http_server(json_application(GuessingServer()))


@pytest.fixture(params=["python", "http"])
def guessing(request, guessing_server):
    """The `[environment]` section of the guessing world, both ways."""
    return {"source": GUESSING} if request.param == "python" else {"service": guessing_server}


@pytest.fixture
async def registry():
    """Makes registries, which are closed at the end."""
    made = []

    def make(*, max_children=8, session_seconds=900.0, children=2):
        policy = AddressPolicy((), True, ENVIRONMENT)
        settings = WorldSettings(policy, python=True, children=ChildSettings(children, allow_unisolated_network=True))
        capacity = Capacity(ProcessBudget(max_children), ProcessBudget(1), Sandboxes(1))
        made.append(Registry(settings, capacity, session_seconds))
        return made[-1]

    yield make
    for one in made:
        await one.end()
