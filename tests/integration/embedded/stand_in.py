"""A stand-in for a service: serves health pages, writes down its environment and ends with 0 on SIGTERM."""

import http.server
import json
import os
import signal
import sys
from pathlib import Path


class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


def main(name: str) -> None:
    note = Path(os.environ["GRADBUS_CACHE_DIR"]) / f"{name}.json"
    note.write_text(json.dumps({"environment": dict(os.environ), "argv": sys.argv}))
    signal.signal(signal.SIGTERM, lambda *_: (print("drained", flush=True), os._exit(0)))
    host, port = os.environ["GRADBUS_HEALTH"].rsplit(":", 1)
    http.server.HTTPServer((host, int(port)), Ready).serve_forever()


main(sys.argv[1])
