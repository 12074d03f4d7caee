"""A hub on loopback, as far as a download asks it."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest


class FakeHub(ThreadingHTTPServer):
    """Serves `files` (name to content) as one commit of one model, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, files, hub_id, commit):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.hub_id, self.commit = files, hub_id, commit
        self.sha = commit
        self.sizes = {}
        """Sizes that are told instead of the true ones."""
        self.asked = []
        self.tokens = set()
        self.status = 200
        self.message = "no"
        self.hold = threading.Event()
        """While it is set, files do not come."""
        self.reached = threading.Event()
        """Is set once a file is held."""
        self.free = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def close(self):
        self.free.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(path)
        hub.tokens.add(self.headers.get("Authorization"))
        if hub.status != 200:
            self.answer(hub.status, hub.message.encode(), {"X-Error-Message": hub.message})
        elif path == f"/api/models/{hub.hub_id}/revision/{hub.commit}":
            files = [{"rfilename": name, "size": self.size(name), "blobId": "0" * 40} for name in hub.files]
            self.json({"id": hub.hub_id, "sha": hub.sha, "siblings": files})
        elif path == f"/api/models/{hub.hub_id}/tree/{hub.commit}":
            self.json([{"type": "file", "path": name, "size": self.size(name), "oid": "0" * 40} for name in hub.files])
        elif path.startswith(f"/{hub.hub_id}/resolve/{hub.commit}/") and (name := path.partition(f"{hub.commit}/")[2]) in hub.files:
            if hub.hold.is_set():
                hub.reached.set()
                hub.free.wait(60)
            content = hub.files[name]
            etag = hashlib.sha256(content).hexdigest()
            self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": hub.commit})
        else:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})

    def size(self, name):
        return self.server.sizes.get(name, len(self.server.files[name]))

    def json(self, value):
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def new_hub():
    """Starts a hub with files (name to content), the id of their model and its commit."""
    started = []

    def start(*given):
        started.append(FakeHub(*given))
        return started[-1]

    yield start
    for hub in started:
        hub.close()
