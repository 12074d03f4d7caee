"""The ledger over HTTP, as a server that fails: in a share of all episodes the first attempt is an error, loses its connection or hangs.

python examples/ledger/server.py [--port 9000] [--faults 0.1]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import runpy
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from zlib import crc32

Environment: Any = runpy.run_path(str(Path(__file__).with_name("environment.py")))["Environment"]
HANG_SECONDS: Final = 15.0
"""More than `environment.step_seconds` of a run with faults."""
KINDS: Final = {"error": 600, "disconnect": 397, "hang": 3}
"""What happens to an attempt that fails, and how often. Few hang, for each takes its deadline."""
PARAMETERS: Final = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}
DESCRIPTION: Final = {
    "name": "ledger",
    "determinism": "seeded",
    "tools": [{"name": "p", "description": "Opens a page.", "parameters": PARAMETERS}],
}
Json = dict[str, Any]


@dataclass
class Session:
    """An episode in one attempt."""

    world: Any
    fault: tuple[str, str] | None
    """The path at which it fails, and how."""
    answers: dict[str, Json] = field(default_factory=dict)
    """By request id: what is asked again is answered as the first time."""


class LedgerServer(ThreadingHTTPServer):
    """Answers `/describe`, `/open`, `/step` and `/close`."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, faults: float) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.faults = faults
        self.failed: Counter[str] = Counter()
        """Attempts that were failed, by kind."""
        self._sessions: dict[str, Session] = {}

    @property
    def url(self) -> str:
        """Address of the environment."""
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, asked: Json) -> Json:
        """What is said to a request. Raises ConnectionAbortedError for one that gets no answer."""
        if path == "/describe":
            return DESCRIPTION
        if path == "/close":
            self._sessions.pop(asked["session"], None)
            return {}
        if path == "/open":
            fault = fault_of(asked["episode_id"], self.faults) if asked["attempt"] == 0 else None
            name, session = random.randbytes(8).hex(), Session(Environment(), fault)
            session.world.reset(asked["item"], asked["seed"])
            self._sessions[name] = session
            return self._failed(session, path) or {"session": name}
        session = self._sessions[asked["session"]]
        known = session.answers.get(asked["request_id"])
        if known is None:
            known = session.answers[asked["request_id"]] = self._failed(session, path) or stepped(session.world, asked)
        return known

    def _failed(self, session: Session, path: str) -> Json | None:
        if session.fault is None or session.fault[0] != path:
            return None
        kind = session.fault[1]
        self.failed[kind] += 1
        if kind == "error":
            return {"status": "error", "reason": "the ledger cannot be read; this was planted"}
        if kind == "hang":
            time.sleep(HANG_SECONDS)
        raise ConnectionAbortedError


def fault_of(episode: str, share: float) -> tuple[str, str] | None:
    """Where and how the first attempt of an episode fails; None for most of them. A function of its name: the faults can be repeated."""
    draw = random.Random(crc32(episode.encode()))
    if draw.random() >= share:
        return None
    return draw.choice(("/open", "/step")), draw.choices(list(KINDS), list(KINDS.values()))[0]


def stepped(world: Any, asked: Json) -> Json:
    """The world's answer to a turn: results of its calls, and the reward of the last turn."""
    calls = [call for call in asked["assistant"]["calls"] if call["status"] == "ok"]
    messages = [{"role": "tool", "call_id": call["call_id"], "content": opened(world, call["arguments"])} for call in calls]
    if calls and not asked["is_last"]:
        return {"messages": messages}
    components = world.reward(asked["assistant"]["text"])
    return {"messages": messages, "reward": components.pop("reward"), "components": components}


def opened(world: Any, arguments: str) -> str:
    """What the page says, or what is wrong with the arguments: the policy drew them."""
    try:
        page = json.loads(arguments)["page"]
        return str(world.p(page)) if page in range(10) else "?."
    except (ValueError, TypeError, LookupError, RecursionError):
        return "?."


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LedgerServer

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the environment service was killed
            super().handle()

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionAbortedError
        self._answer(json.loads(body))

    def _answer(self, asked: Json) -> None:
        try:
            body = json.dumps(self.server.answer(self.path, asked)).encode()
        except ConnectionAbortedError:
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The ledger over HTTP, with faults.")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--faults", type=float, default=0.1, help="share of the episodes whose first attempt fails")
    options = parser.parse_args()
    with LedgerServer(options.port, options.faults) as server:
        print(f'service = "{server.url}"', flush=True)
        server.serve_forever()
