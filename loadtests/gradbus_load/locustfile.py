"""Locust users of a gateway: submissions, status reads and event followers. `scenarios/rest.py` starts it.

The plan comes as JSON in GRADBUS_LOAD_PLAN, the key in GRADBUS_KEY. Locust runs on the cores that it measures, so its users write
to a socket of their own: an HTTP client would cost more than what it asks for.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from locust import User, events, task
from locust.exception import LocustError

from gradbus_load.processes import Usage, cpu_seconds, usage

PLAN: dict[str, Any] = {"name": "load", "submits": 1, "submits_a_second": 1, "reads_a_second": 1}
PLAN |= dict.fromkeys(("submitters", "readers", "followers"), 1) | json.loads(os.environ.get("GRADBUS_LOAD_PLAN", "{}"))
_KEY = {"Authorization": f"Bearer {os.environ.get('GRADBUS_KEY', '')}"}
_BODY: Final = json.dumps(PLAN.get("body")).encode()
_LENGTH: Final = b"content-length:"
_numbers, _answered = itertools.count(), itertools.count(1)
_known: list[str] = []
_PIDS: Final = PLAN.get("pids", {}) | {"locust": os.getpid()}
_before: dict[str, Usage] = {}
gc.freeze()  # a GC pause of the client would count as the gateway's time


class Caller(User):
    """Sends one request at a random moment of each interval: a constant rate from independent users."""

    abstract = True
    turns_a_second = 1.0

    def on_start(self) -> None:
        """Connects and waits for the moment of the first interval."""
        self._connect()
        self._turn = time.monotonic() - 1.0 / self.turns_a_second
        time.sleep(self.wait_time())

    def wait_time(self) -> float:
        """Seconds until the moment of the next interval; missed intervals follow at once."""
        self._turn += 1.0 / self.turns_a_second
        return max(0.0, self._turn + random.uniform(0.0, 1.0 / self.turns_a_second) - time.monotonic())

    def ask(self, name: str, line: str, headers: str = "", body: bytes = b"") -> Any:
        """The gateway's answer, counted under `name`; None when it refuses or closes the connection."""
        began, content, error = time.perf_counter(), b"{}", None
        try:
            self._socket.sendall(f"{line} HTTP/1.1\r\n{self._head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            content = self._answer()
        except (OSError, LocustError) as failure:
            error = failure
            self._connect()
        spent = 1000 * (time.perf_counter() - began)
        events.request.fire(request_type=name, name=name, response_time=spent, response_length=len(content), exception=error, context={})  # type: ignore[no-untyped-call]
        return json.loads(content)

    def _connect(self) -> None:
        address = urlsplit(self.host or "")
        self._head = f"Host: {address.netloc}\r\nAuthorization: {_KEY['Authorization']}\r\n"
        self._socket = socket.create_connection((address.hostname, address.port), timeout=30.0)
        self._answers = self._socket.makefile("rb")

    def _answer(self) -> bytes:
        status, length = self._answers.readline().split(), 0
        if not status or not status[1].startswith(b"2"):
            raise LocustError(b" ".join(status).decode() or "the connection was closed")
        while line := self._answers.readline().strip().lower():
            if line.startswith(_LENGTH):
                length = int(line.removeprefix(_LENGTH))
        return self._answers.read(length)


class Submitter(Caller):
    """Submits runs at its share of the planned rate. The answer to the last submission ends the test."""

    fixed_count = PLAN["submitters"]
    turns_a_second = PLAN["submits_a_second"] / PLAN["submitters"]

    @task
    def submit(self) -> None:
        """Submits one run with its own idempotency key; readers request the newest run."""
        number = next(_numbers)
        if number >= PLAN["submits"]:
            return
        headers = f"Content-Type: application/json\r\nIdempotency-Key: {PLAN['name']}-{number}\r\n"
        run = self.ask("submit", "POST /v1/runs", headers, _BODY)
        _known[:] = [run["id"]] if run else _known
        if next(_answered) == PLAN["submits"]:
            self.environment.runner.quit()


class Reader(Caller):
    """Reads the newest run."""

    abstract = not PLAN["readers"]
    fixed_count = PLAN["readers"]
    turns_a_second = PLAN["reads_a_second"] / max(1, PLAN["readers"])

    @task
    def read(self) -> None:
        """One run."""
        if _known:
            self.ask("status", f"GET /v1/runs/{_known[0]}")


class Follower(User):
    """Follows the run that trains at the same time and measures the age of arriving events."""

    abstract = not PLAN["followers"]
    fixed_count = PLAN["followers"]

    @task
    def follow(self) -> None:
        """Follows until the test ends."""
        for line in _stream(urlsplit(self.host or "").netloc, f"/v1/runs/{PLAN['followed']}/events"):
            if line.startswith("data:"):
                age = time.time() - datetime.fromisoformat(json.loads(line.removeprefix("data:"))["created_at"]).timestamp()
                events.request.fire(request_type="SSE", name="event", response_time=1000 * max(0.0, age), response_length=len(line))  # type: ignore[no-untyped-call]


def _stream(address: str, path: str) -> Iterator[str]:
    connection = HTTPConnection(address, timeout=30)
    connection.request("GET", path, headers={**_KEY, "Accept": "text/event-stream", "Last-Event-ID": str(PLAN["after"])})
    answer = connection.getresponse()
    while line := answer.readline():
        yield line.decode()


@events.test_start.add_listener
def _note_start(**_: Any) -> None:
    _before.update(usage(_PIDS))


@events.test_stop.add_listener
def _note_end(**_: Any) -> None:
    if "spent" in PLAN:
        Path(PLAN["spent"]).write_text(json.dumps(cpu_seconds(_before, usage(_PIDS))))
