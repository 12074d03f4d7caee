"""A user's environment over HTTP, in the tests' process: a word is right if it was not said before."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

LAST = 3


class World(ThreadingHTTPServer):
    """Keeps its sessions; `asked` has every request."""

    request_queue_size = 128

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.asked, self.said = [], {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/words"

    def describe(self):
        return {"name": "words", "version": "1", "determinism": "seeded", "tools": []}

    def open(self, asked):
        session = f"{asked['episode_id']}-{asked['attempt']}"
        self.said[session] = []
        return {"session": session}

    def step(self, asked):
        said = self.said[asked["session"]]
        text = asked["assistant"]["text"]
        reward = len(set(text)) / 16
        said.append(text)
        done = asked["is_last"] or len(said) == LAST
        messages = [] if done else [{"role": "user", "content": " and"}]
        return {"reward": reward, "components": {"letters": len(set(text))}, "done": done, "messages": messages}

    def close(self, asked):
        self.said.pop(asked["session"], None)
        return {}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(self.server.describe())

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.rpartition("/")[2]
        self.server.asked.append((name, asked))
        self.answer({"open": self.server.open, "step": self.server.step, "close": self.server.close}[name](asked))

    def answer(self, said):
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def worlds():
    """Starts a server of the user's on a port; its episodes have at most `LAST` turns."""
    started = []

    def start(port=0):
        started.append(World(port))
        return started[-1]

    yield start
    for server in started:
        server.shutdown()
