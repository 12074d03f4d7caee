"""What locust does to a gateway: submits, status reads, followers of events. `scenarios/rest.py` starts it.

The plan comes as JSON in GRADBUS_LOAD_PLAN, the key in GRADBUS_KEY.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from locust import FastHttpUser, User, constant_throughput, events, task

PLAN: dict[str, Any] = {"submitters": 1, "readers": 1, "followers": 1, "submits_a_second": 1, "reads_a_second": 1}
PLAN |= json.loads(os.environ.get("GRADBUS_LOAD_PLAN", "{}"))
_KEY = {"Authorization": f"Bearer {os.environ.get('GRADBUS_KEY', '')}"}
_numbers = itertools.count()
_known: list[str] = []


class Submitter(FastHttpUser):
    """Submits runs at its share of the plan's rate, until the plan's number is reached."""

    fixed_count = PLAN["submitters"]
    wait_time = constant_throughput(PLAN["submits_a_second"] / PLAN["submitters"])
    default_headers = _KEY

    @task
    def submit(self) -> None:
        """One run with a key of its own; the newest is what readers ask for."""
        number = next(_numbers)
        if number >= PLAN["submits"]:
            self.environment.runner.quit()
            return
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"load-{number}"}
        answer = self.client.post("/v1/runs", data=json.dumps(PLAN["body"]), headers=headers, name="submit")
        if answer.status_code == 201:
            _known[:] = [str(answer.json()["id"])]


class Reader(FastHttpUser):
    """Reads the newest run, and now and then the list."""

    fixed_count = PLAN["readers"]
    wait_time = constant_throughput(PLAN["reads_a_second"] / PLAN["readers"])
    default_headers = _KEY

    @task
    def read(self) -> None:
        """One run."""
        if _known:
            self.client.get(f"/v1/runs/{_known[0]}", name="status")


class Follower(User):
    """Follows the run that trains meanwhile: how old is an event when it arrives?"""

    fixed_count = PLAN["followers"]

    @task
    def follow(self) -> None:
        """Until the test ends."""
        for line in _stream(urlsplit(self.environment.host or "").netloc, f"/v1/runs/{PLAN['followed']}/events"):
            if line.startswith("data:"):
                age = time.time() - datetime.fromisoformat(json.loads(line.removeprefix("data:"))["created_at"]).timestamp()
                events.request.fire(request_type="SSE", name="event", response_time=1000 * max(0.0, age), response_length=len(line))  # type: ignore[no-untyped-call]


def _stream(address: str, path: str) -> Iterator[str]:
    connection = HTTPConnection(address, timeout=30)
    connection.request("GET", path, headers={**_KEY, "Accept": "text/event-stream", "Last-Event-ID": str(PLAN["after"])})
    answer = connection.getresponse()
    while line := answer.readline():
        yield line.decode()
