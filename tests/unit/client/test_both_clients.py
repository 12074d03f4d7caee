"""What both clients make of a gateway that cuts streams, and of one of a newer release."""

import asyncio
import json
import threading
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest

from gradbus.client import AsyncClient, Client, document
from gradbus.errors import AnswerError, StackError
from gradbus.resources.runs import EventResource, RunResource

RUN_ID = "run-000000000001-aaaaaa"
SPEC = {"name": "sums", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://there:1"}, "schedule": {"steps": 1}}
EVENT = {"type": "metrics", "level": "info", "message": "", "data": {}, "created_at": "2026-01-01T00:00:00Z"}
RUN = {"id": RUN_ID, "name": "sums", "kind": "rl", "state": "running", "desired": "running", "steps": 1, "progress": {}, "created_at": None}
NEWER = json.loads(RunResource.model_validate(RUN | {"spec": SPEC}).model_dump_json())
NEWER |= {"mood": {"now": "calm"}, "progress": NEWER["progress"] | {"joy": 1}}
NEWER["spec"]["schedule"] |= {"naps": [1, 2]}


class Gateway(BaseHTTPRequestHandler):
    """Has five events, each of which it sends over a connection of its own; a run of a newer release, or in an unknown state."""

    asked = ()

    def do_GET(self):
        if "text/event-stream" in self.headers["Accept"]:
            after = int(self.headers["Last-Event-ID"])
            type(self).asked += (after,)
            event = json.dumps({"id": after + 1} | EVENT)
            self._send("text/event-stream", f"id: {after + 1}\nevent: metrics\ndata: {event}\n\n" if after < 5 else "")
        elif "/events" in self.path:
            self._send("application/json", json.dumps({"data": [], "has_more": False}))
        elif self.path.endswith(RUN_ID):
            ended = {"state": "succeeded"} if 5 in self.asked else {}
            self._send("application/json", json.dumps(NEWER | ended))
        else:
            self._send("application/json", json.dumps(NEWER | {"state": "asleep"}))

    def _send(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def gateway():
    """Its handler, and its address."""
    handler = type("Of", (Gateway,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def streamed(url, most):
    with Client(url, "key") as client:
        return list(islice(client.stream(RUN_ID), most))


async def streamed_async(url, most):
    found = []
    async with AsyncClient(url, "key") as client, aclosing(client.stream(RUN_ID)) as events:
        async for event in events:
            found.append(event)
            if len(found) == most:
                break
    return found


def run(url, run_id):
    with Client(url, "key") as client:
        return client.run(run_id)


async def run_async(url, run_id):
    async with AsyncClient(url, "key") as client:
        return await client.run(run_id)


def of_both(blocking, awaiting):
    return pytest.mark.parametrize("read", [blocking, lambda *given: asyncio.run(awaiting(*given))], ids=["Client", "AsyncClient"])


@of_both(streamed, streamed_async)
@pytest.mark.parametrize(("most", "opened"), [(3, (0, 1, 2)), (99, (0, 1, 2, 3, 4, 5))], ids=["left early", "to the end"])
def test_a_stream_that_is_cut_goes_on_after_its_last_event(gateway, read, most, opened):
    handler, url = gateway
    events = read(url, most)
    assert [event.id for event in events] == list(range(1, min(most, 5) + 1))
    assert isinstance(events[0], EventResource)
    assert handler.asked == opened, "the cursor of each connection"


@of_both(run, run_async)
def test_fields_of_a_newer_gateway_are_kept_and_are_in_the_document(gateway, read):
    found = read(gateway[1], RUN_ID)
    assert (found.state, found.spec.schedule.steps) == ("running", 1)
    assert document(found) == NEWER


@of_both(run, run_async)
def test_a_value_that_cannot_be_read_is_named(gateway, read):
    with pytest.raises(AnswerError, match=r"\(state.*: Input should be 'queued'.*install the gateway's release"):
        read(gateway[1], RUN_ID[:-1] + "b")


@of_both(streamed, streamed_async)
def test_a_stream_without_a_gateway_ends_with_what_to_do(monkeypatch, read):
    monkeypatch.setattr("gradbus.client.stream._LONGEST_PAUSE_SECONDS", 0.0)
    with pytest.raises(StackError, match=r"lost the connection to the gateway at http://127\.0\.0\.1:9 .*see `gradbus status`"):
        read("http://127.0.0.1:9", 1)
