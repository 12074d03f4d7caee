"""A world whose answers are random bytes: a worker that dies loses none of them, and none is asked for a second time."""

import json
import random
import secrets
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ledger import check, read_ledger
from smoke import train

from gradbus.v1.episode_pb2 import END_REASON_FAILED
from gradbus.v1.group_pb2 import Group

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 5
GROUPS = 4
LAST_TURN = 3


class RandomWorld(ThreadingHTTPServer):
    """Says random letters. `script` are the answers of an earlier run by episode, attempt and turn, which it then gives again."""

    request_queue_size = 256

    def __init__(self, script=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.said, self.sessions, self.answered, self.executed = script, {}, {}, {}, Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"

    def describe(self, _):
        return {"name": "random", "version": "1", "determinism": "recorded", "tools": []}

    def open(self, asked):
        session = secrets.token_hex(8)
        self.sessions[session] = asked["episode_id"], asked["attempt"]
        return {"session": session}

    def step(self, asked):
        if (first := self.answered.get(asked["request_id"])) is not None:
            return first  # its answer was on the way when a worker died
        place = (*self.sessions[asked["session"]], asked["turn"])
        self.executed[place] += 1
        letters = self.script[place] if self.script is not None else "".join(random.SystemRandom().choices("abcdefghijklmno", k=2))
        self.said[place] = letters
        done = asked["is_last"] or asked["turn"] == LAST_TURN
        reward = sum(letter in asked["assistant"]["text"] for letter in letters)
        messages = [] if done else [{"role": "user", "content": letters}]
        answer = self.answered[asked["request_id"]] = {"messages": messages, "reward": reward, "done": done}
        return answer

    def close(self, asked):
        self.sessions.pop(asked["session"], None)
        return {}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({})

    def do_POST(self):
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, asked):
        body = json.dumps(getattr(self.server, self.path.rpartition("/")[2])(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def world():
    started = []

    def start(script=None):
        started.append(RandomWorld(script))
        return started[-1]

    yield start
    for one in started:
        one.shutdown()
        one.server_close()


@pytest.fixture
def spec_of(game):
    def make(world):
        return {
            "name": "recorded",
            "deterministic": True,
            "model": {"path": str(game / "model")},
            "data": {"train": str(game / "letters.jsonl")},
            "environment": {"service": world.url, "max_turns": 6},
            "rollout": {"slots": 32, "group_size": 4, "max_new_tokens": 2, "stop_token_ids": list(range(3, 18))},
            "schedule": {"groups_per_step": GROUPS, "steps": STEPS},
            "checkpoint": {"every": 4, "keep": 100},
        }

    return make


def told(ledger):
    """What each trained episode was told, by index, n and turn."""
    found = {}
    for index, entry in ledger.entries.items():
        for sample in Group.FromString(entry.group).samples:
            assert sample.episode.end_reason != END_REASON_FAILED
            assert sample.episode.attempt == 0
            for number, turn in enumerate(sample.episode.turns):
                found[index, sample.n, number] = "".join(message.content for message in turn.messages)
    return found


POINTS = {"rollout-0": "after-answered:20", "rollout-1": "before-answered:25"}
OTHERS = {"rollout-0": "after-drawn:20", "rollout-1": "after-opened:20"}


@pytest.mark.parametrize("points", [POINTS, OTHERS], ids=["answered", "drawn"])
async def test_no_result_is_lost_or_asked_for_twice(stack_of, spec_of, world, tmp_path, points):
    first = world()
    faults = {}
    for name, point in points.items():
        (tmp_path / name).mkdir()
        faults[name] = {"GRADBUS_CRASH_POINT": point, "GRADBUS_CRASH_DIR": str(tmp_path / name)}
    async with stack_of(2, environment_overrides=faults) as stack:
        disturbed = await train(stack, spec_of(first), seconds=600.0)
        assert disturbed.state == "succeeded"
        assert disturbed.deterministic == "given records"
        ledger = read_ledger(stack.state.root, disturbed.run_id)
    deaths = [path.name for name in points for path in (tmp_path / name).iterdir()]
    assert len(deaths) >= 2, "workers die in the middle of episodes"
    assert check(ledger, GROUPS, STEPS, max_staleness=1, fixed_lag=True) == []
    assert set(first.executed.values()) == {1}, "each turn is executed once, whoever died"
    said = {(*map(int, name.split(".")[2:]), turn): letters for (name, _, turn), letters in first.said.items() if name.startswith("train.")}
    for (index, n, turn), content in told(ledger).items():
        assert content in {said[index, n, turn], ""}
    again = world(script=first.said)
    async with stack_of(1) as stack:
        calm = await train(stack, spec_of(again))
    assert (calm.state, calm.digest) == ("succeeded", disturbed.digest), "given its records, the run is deterministic"
