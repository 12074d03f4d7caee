"""Your own reward in a few lines: the share of the response that is the requested letter.

python examples/chat/reward_server.py [PORT]
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Score(BaseHTTPRequestHandler):
    """POST {samples: [{sample_id, response, item, ...}]} -> {results: [{sample_id, status, reward}]}."""

    def do_POST(self) -> None:
        """Scores all waiting samples in one call."""
        samples = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["samples"]
        results = [{"sample_id": sample["sample_id"], "status": "ok", "reward": reward(sample)} for sample in samples]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"results": results}).encode())


def reward(sample: dict) -> float:
    """In [0, 1]."""
    return sample["response"].count(sample["item"]["letter"]) / max(1, len(sample["response"]))


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    print(f"scoring at http://127.0.0.1:{port}/score until Ctrl-C")
    ThreadingHTTPServer(("127.0.0.1", port), Score).serve_forever()
