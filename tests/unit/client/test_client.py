"""What the client refuses before it sends anything, and how it takes answers that are cut short."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from gradbus.client import Client
from gradbus.client.answers import checked, trusting
from gradbus.errors import ApiError, SpecError, StackError
from gradbus.ids import digest_of
from gradbus.resources.runs import RunResource


@pytest.mark.parametrize("value", ["\ud800", float("nan"), 10**400])
def test_a_spec_that_no_json_can_carry_names_the_field(value):
    with Client("http://127.0.0.1:9", "key") as client, pytest.raises(SpecError) as refused:
        client.submit({"name": "run", "model": {"path": value}})
    assert [fault.path for fault in refused.value.faults] == ["model.path"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"json": {"type": "urn:gradbus:problem:busy", "detail": "other submissions are being checked"}}, "other submissions"),
        ({"json": {"oops": 1}}, "cannot answer now"),
        ({"text": "<html>Bad luck</html>"}, "cannot answer now"),
    ],
)
@pytest.mark.parametrize("code", [502, 503, 504])
def test_a_gateway_that_cannot_answer_now_says_why(answer, message, code):
    with pytest.raises(StackError, match=message):
        checked(httpx2.Response(code, request=httpx2.Request("GET", "http://there"), **answer))


RUN_ID = "run-000000000001-aaaaaa"
SPEC = {"name": "sums", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://there:1"}, "schedule": {"steps": 1}}


def run(state):
    given = {"id": RUN_ID, "name": "sums", "kind": "rl", "state": state, "desired": "running", "steps": 1, "progress": {}}
    return RunResource.model_validate(given | {"created_at": None, "spec": SPEC}).model_dump_json()


def event(number):
    return {"id": number, "type": "metrics", "level": "info", "message": "", "data": {}, "created_at": "2026-01-01T00:00:00Z"}


class Gateway(BaseHTTPRequestHandler):
    """Has a run that is over, with three events; closes a stream after the first."""

    def do_GET(self):
        events = [event(number) for number in (1, 2, 3)]
        if "text/event-stream" in self.headers["Accept"]:
            self._send("text/event-stream", f"id: 1\nevent: metrics\ndata: {json.dumps(events[0])}\n\n")
        elif "after=1" in self.path:
            self._send("application/json", json.dumps({"data": events[1:], "has_more": False}))
        else:
            self._send("application/json", run("succeeded"))

    def _send(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


class ClosingGateway(Gateway):
    """Closes every stream before its first event; the run is over at the tenth."""

    streams = 0

    def do_GET(self):
        if "text/event-stream" in self.headers["Accept"]:
            ClosingGateway.streams += 1
            self._send("text/event-stream", ": heartbeat\n\n")
        elif "/events" in self.path:
            self._send("application/json", json.dumps({"data": [], "has_more": False}))
        else:
            self._send("application/json", run("running" if self.streams < 10 else "succeeded"))


def test_streams_that_end_at_once_are_opened_again_after_a_growing_pause(monkeypatch):
    pauses = []
    monkeypatch.setattr("gradbus.client.client.time.sleep", pauses.append)
    with ThreadingHTTPServer(("127.0.0.1", 0), ClosingGateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(f"http://127.0.0.1:{server.server_port}", "key") as client:
            assert list(client.stream(RUN_ID)) == []
        server.shutdown()
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


def test_events_behind_the_end_of_a_stream_that_was_closed_early_are_read_too():
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(f"http://127.0.0.1:{server.server_port}", "key") as client:
            assert [event.id for event in client.stream(RUN_ID)] == [1, 2, 3]
        server.shutdown()


class DeletingGateway(Gateway):
    """Deletes each version before it is downloaded, up to the third."""

    exports, kept = 0, 3

    def do_GET(self):
        if "/export" in self.path:
            type(self).exports += 1
            files = [{"name": "model.safetensors", "id": digest_of(str(self.exports).encode())}]
            plan = {"run_id": RUN_ID, "version": self.exports, "final": False, "digest": "", "files": files}
            self._send("application/json", json.dumps(plan))
        elif self.exports < self.kept:
            self.send_error(404)
        else:
            self._send("application/octet-stream", str(self.exports))


@pytest.mark.parametrize(("version", "kept", "exports"), [(None, 3, 3), (None, 9, 5), (1, 9, 1)], ids=["newest", "never kept", "chosen"])
def test_an_export_whose_version_is_deleted_begins_again_with_the_newest(tmp_path, version, kept, exports):
    gateway = type("Of", (DeletingGateway,), {"exports": 0, "kept": kept})
    with ThreadingHTTPServer(("127.0.0.1", 0), gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(f"http://127.0.0.1:{server.server_port}", "key") as client:
            if kept == 3:
                assert client.export(RUN_ID, tmp_path, version).version == 3
                assert (tmp_path / "model.safetensors").read_text() == "3"
            else:
                with pytest.raises(ApiError, match="404"):
                    client.export(RUN_ID, tmp_path, version)
        server.shutdown()
    assert gateway.exports == exports


def test_without_tls_nobody_is_trusted_and_with_it_the_systems_authorities():
    nobody = trusting("http://gradbus", None)
    assert (nobody.verify_mode, nobody.get_ca_certs()) == (ssl.CERT_REQUIRED, [])
    assert trusting("HTTPS://gradbus", None) is True
