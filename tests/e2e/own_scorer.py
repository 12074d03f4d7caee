"""A user's scorer over HTTP, in the tests' process."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def judged(samples):
    return [{"sample_id": sample["sample_id"], "status": "ok", "reward": len(set(sample["response"])) / 16} for sample in samples]


class Scorer(ThreadingHTTPServer):
    """Answers by `behaviour`, which a test may change; an exception is a 500."""

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.behaviour = judged
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/score"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(request)
        try:
            answer, status = {"results": self.server.behaviour(request["samples"])}, 200
        except RuntimeError:
            answer, status = {}, 500
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
