"""The agent service as a process; a scripted rollout worker on its one side, agents over HTTP on the other."""

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx2
import pytest

from gradbus.access.api_keys import new_api_key, write_api_keys
from gradbus.formats.tokens import pack_ids, pack_logprobs
from gradbus.rpc import open_channel, token_hash
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub
from gradbus.v1.episode_pb2 import ToolCall

TOKEN = "of-the-test"


@dataclasses.dataclass
class Service:
    """Where the service is, and a key by which agents claim."""

    process: subprocess.Popen
    port: int
    url: str
    key: str
    reader: str


def start_service(folder, free_port, files=None, **settings):
    """`files`: how many the process may have open, which bounds its connections."""
    port, http = free_port(), free_port()
    (key, record), (reader, second) = new_api_key("test", ["runs:write"]), new_api_key("reader", ["runs:read"])
    write_api_keys(folder / "api-keys.json", [record, second])
    environment = {
        **os.environ,
        "GRADBUS_LISTEN": f"127.0.0.1:{port}",
        "GRADBUS_HTTP_LISTEN": f"127.0.0.1:{http}",
        "GRADBUS_PUBLIC_URL": f"http://127.0.0.1:{http}",
        "GRADBUS_RPC_CALLERS": json.dumps({"rollout": token_hash(TOKEN)}),
        "GRADBUS_API_KEYS_FILE": str(folder / "api-keys.json"),
        "GRADBUS_ALLOW_LOOPBACK": "true",
        **settings,
    }
    log = (folder / "agent.log").open("wb")
    limits = ["prlimit", f"--nofile={files}"] if files else []
    process = subprocess.Popen([*limits, sys.executable, "-m", "gradbus_agent"], env=environment, stderr=log, stdout=log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    return Service(process, port, f"http://127.0.0.1:{http}", key, reader)


@pytest.fixture(scope="session")
def service(tmp_path_factory, free_port):
    folder = tmp_path_factory.mktemp("agent")
    started = start_service(folder, free_port)
    yield started
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(60) == 0, "SIGTERM drains and ends with 0"
    log = (folder / "agent.log").read_text()
    assert started.key.partition(".")[2] not in log
    assert "crashed" not in log, log


@pytest.fixture
async def stub(service):
    channel = open_channel(f"127.0.0.1:{service.port}", TOKEN)
    yield EnvironmentServiceStub(channel)
    await channel.close()


@pytest.fixture
async def http():
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        yield client


@dataclasses.dataclass
class Worker:
    """Plays an episode as a rollout worker does: `draw` gives the turns of the policy."""

    stub: object
    section: dict = dataclasses.field(default_factory=lambda: {"agent": "pull", "step_seconds": 20})
    run_id: str = "run"
    item: dict = dataclasses.field(default_factory=lambda: {"question": "2+2"})
    player: str = "player"
    traceparent: str = ""
    name: str = ""
    session: str = ""
    turn: int = -1
    untrained: int = 0
    withdrawn: int = 0

    async def open(self, episode="train.0.0.0", attempt=0, timeout=60, *, resume=False):
        request = pb.OpenRequest(run_id=self.run_id, environment_json=json.dumps(self.section), episode_id=episode, attempt=attempt)
        request.resume, request.worker = resume, self.name
        request.item_json, request.player, request.traceparent = json.dumps(self.item), self.player, self.traceparent
        answer = await self.stub.Open(request, timeout=timeout)
        self.session, self.turn, self.untrained, self.withdrawn = answer.session, -1, 0, 0
        return answer

    def request(self, text="", *calls, finish="stop", end="", tokens=None, stop_text="", untrained=False):
        """`calls` are (name, arguments as drawn, status). `tokens` are (prompt tokens, ids, logprobs, versions)."""
        self.turn += not untrained
        request = pb.StepRequest(run_id=self.run_id, session=self.session, turn=self.turn + untrained, is_last=bool(end), end_reason=end)
        request.untrained, request.is_untrained, request.withdrawn = self.untrained, untrained, self.withdrawn
        self.untrained += untrained
        request.assistant.text, request.assistant.finish, request.assistant.stop_text = text, finish, stop_text
        for at, (name, arguments, *status) in enumerate(calls):
            call_id = f"u{request.untrained}.{at}" if untrained else f"c{self.turn}.{at}"
            call = ToolCall(call_id=call_id, name=name, arguments_json=arguments, status=status[0] if status else 1)
            request.assistant.calls.append(call)
        prompt, ids, logprobs, versions = tokens or (3, [1, 2], [-0.5, -0.25], (4, 5))
        drawn = request.assistant.drawn
        drawn.prompt_tokens, drawn.token_ids, drawn.logprobs = prompt, pack_ids(ids), pack_logprobs(logprobs)
        drawn.version_first, drawn.version_last = versions
        return request

    async def keep_alive(self, *known):
        """The draws that nobody waits for, as (session, ordinal); the call is held until there is one that is not known."""
        draws = [pb.AskedDraw(session=session, ordinal=ordinal) for session, ordinal in known]
        answer = await self.stub.KeepAlive(pb.KeepAliveRequest(worker=self.name, known_draws=draws), timeout=90)
        return [(draw.session, draw.ordinal) for draw in answer.withdrawn_draws]

    async def withdraw(self):
        """Draws the turn that was asked to no end, and gives what is asked then."""
        request = pb.StepRequest(run_id=self.run_id, session=self.session, turn=self.turn + 1, assistant={"finish": "withdrawn"})
        request.untrained, request.withdrawn = self.untrained, self.withdrawn
        self.withdrawn += 1
        return await self.stub.Step(request, timeout=60)

    async def step(self, *given, timeout=60, **named):
        return await self.stub.Step(self.request(*given, **named), timeout=timeout)

    async def close(self):
        if self.session:
            await self.stub.Close(pb.CloseRequest(run_id=self.run_id, session=self.session), timeout=10)


@dataclasses.dataclass
class Agent:
    """An agent that has claimed one episode."""

    http: httpx2.AsyncClient
    offer: dict

    def url(self, path):
        return f"{self.offer['base_url']}/{path}"

    @property
    def headers(self):
        return {"authorization": f"Bearer {self.offer['api_key']}"}

    async def chat(self, messages, headers=None, **fields):
        body = {"model": "any", "messages": [{"role": "user", "content": messages}] if isinstance(messages, str) else messages, **fields}
        return await self.http.post(self.url("chat/completions"), json=body, headers={**self.headers, **(headers or {})})

    async def end(self, **body):
        path = self.url(f"agent/episodes/{self.offer['episode']}/end")
        return await self.http.post(path, json={"attempt": self.offer["attempt"], **body}, headers=self.headers)

    async def beat(self):
        return await self.http.post(self.url(f"agent/episodes/{self.offer['episode']}/beat"), headers=self.headers)

    async def show(self):
        return (await self.http.get(self.url(f"agent/episodes/{self.offer['episode']}"), headers=self.headers)).json()


@pytest.fixture
def claim(http, service):
    """Claims episodes of a run, with an API key."""

    async def claimed(run, capacity=1, seconds=20, key=None, **fields):
        body = {"run": run, "capacity": capacity, "wait_seconds": seconds, **fields}
        return await http.post(f"{service.url}/v1/agent/claim", json=body, headers={"authorization": f"Bearer {key or service.key}"})

    return claimed


_runs = iter(range(1_000_000))


@pytest.fixture
async def worker(stub):
    """A worker of a run of its own."""
    made = Worker(stub, run_id=f"run-{next(_runs)}")
    yield made
    await made.close()


@pytest.fixture
def agent_of(http):
    """The agent that got an episode, as JSON, at its address."""
    return lambda body: Agent(http, json.loads(body))


@pytest.fixture
async def begin(stub, http, claim):
    """Begins an episode of a run of its own: (worker, agent, the opening in progress)."""
    workers = []

    async def begun(name="", **section):
        """`name` of a worker of whose life the service is to know."""
        run_id = f"run-{next(_runs)}"
        worker = Worker(stub, {"agent": "pull", "step_seconds": 20, **section}, run_id, name=name and f"{name}-{run_id}")
        workers.append(worker)
        opening = asyncio.create_task(worker.open())
        (offer,) = (await claim(run_id)).json()
        return worker, Agent(http, offer), opening

    yield begun
    for worker in workers:
        await worker.close()


class Game:
    """An episode with its agent and its worker in step: one request, one turn."""

    def __init__(self, worker, agent, opening):
        self.worker, self.agent, self.opening = worker, agent, opening
        self.answering = opening
        self.asked = None

    async def ask(self, messages, **fields):
        """A chat completion of the agent, and the reply that the worker gets."""
        return await self.ask_by(self.agent.chat(messages, **fields))

    async def ask_by(self, asking):
        """Any request of the agent, and the reply that the worker gets."""
        self.asked = asyncio.ensure_future(asking)
        reply = await self.answering
        self.worker.session = self.worker.session or reply.session
        return reply

    async def draw(self, *given, **named):
        """A turn of the policy, and the answer that the agent gets."""
        self.answering = asyncio.create_task(self.worker.step(*given, **named))
        return await self.asked


@pytest.fixture
async def begin_game(begin):
    """Begins an episode of a run of its own."""
    games = []

    async def begun(**section):
        games.append(Game(*await begin(**section)))
        return games[-1]

    yield begun
    for one in games:
        one.answering.cancel()


@pytest.fixture
async def game(begin_game):
    return await begin_game()
