"""Measures whether scoring overlaps generation and training: `python loadtests/scorer_overlap.py [--seconds 0.3] [--steps 20]`.

Each row is a run with a scorer that sleeps so long in every call. `score` is that sleep, `generate` and `train` are the
step time without it; a loop that does one thing after the other needs their sum, one that overlaps about the largest.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import statistics
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gradbus.client import Client
from gradbus.embedded import Stack, StackConfig

EXAMPLE = Path(__file__).parents[1] / "examples" / "copy" / "make_model.py"
GROUPS = 16
WARM_UP = 3


class SlowScorer(ThreadingHTTPServer):
    """The fraction of correct characters, after a sleep."""

    daemon_threads = True

    def __init__(self, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seconds = seconds


class _Handler(BaseHTTPRequestHandler):
    server: SlowScorer

    def do_POST(self) -> None:
        """Scores all samples of a call."""
        samples = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["samples"]
        time.sleep(self.server.seconds)
        results = [{"sample_id": sample["sample_id"], "status": "ok", "reward": _reward(sample)} for sample in samples]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"results": results}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Logs nothing."""


def _reward(sample: dict[str, Any]) -> float:
    response: str = sample["response"]
    answer: str = sample["item"]["answer"]
    return sum(given == right for given, right in zip(response, answer, strict=False)) / len(answer)


def spec_for(folder: Path, address: str, staleness: int, options: argparse.Namespace) -> dict[str, Any]:
    """A run on the copying task, scored at `address`."""
    return {
        "name": f"overlap-{staleness}",
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / "train.jsonl")},
        "rollout": {"slots": 64, "group_size": 8, "max_new_tokens": options.tokens},
        "reward": {"service": address},
        "schedule": {"max_staleness": staleness, "groups_per_step": GROUPS, "steps": options.steps},
        "trainer": {"learning_rate": 1e-3},
        "checkpoint": {"every": options.steps},
    }


def measure(client: Client, body: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a step and of its training, medians over the steps after the first."""
    run_id = client.submit(body).id
    run = client.wait(run_id, poll_seconds=0.2)
    if run.state != "succeeded":
        raise SystemExit(f"the run is {run.state}: {run.reason}")
    steps = [event.data["seconds"] for event in client.events(run_id) if event.type == "metrics"][WARM_UP:]
    return statistics.median(sum(step[part] for part in ("wait", "train", "publish")) for step in steps), statistics.median(
        step["train"] for step in steps
    )


def make_example(folder: Path) -> Path:
    """Model and data of the copying task."""
    module_spec = importlib.util.spec_from_file_location("make_copy", EXAMPLE)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    made: Path = module.make(folder)
    return made


def table(client: Client, folder: Path, options: argparse.Namespace) -> None:
    """Prints a line for each sleep and staleness."""
    print(f"{'score':>7} {'staleness':>9} {'generate':>9} {'train':>7} {'sum':>7} {'largest':>8} {'step':>7}   seconds")
    generate = 0.0
    for seconds in (0.0, options.seconds):
        scorer = SlowScorer(seconds)
        threading.Thread(target=scorer.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{scorer.server_port}/score"
        for staleness in (0, 1, 2, 4):
            step, train = measure(client, spec_for(folder, address, staleness, options))
            generate = generate or max(0.0, step - train)  # on-policy without a sleep, phases run one after the other
            parts = (generate, seconds, train)
            print(f"{seconds:7.3f} {staleness:9} {generate:9.3f} {train:7.3f} {sum(parts):7.3f} {max(parts):8.3f} {step:7.3f}", flush=True)
        scorer.shutdown()


async def main() -> None:
    """Starts a stack and measures on it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="what the slow scorer sleeps in each call")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = make_example(Path(root) / "copy")
        async with Stack(StackConfig(Path(root) / "state", port=0)) as stack:
            with Client(stack.url, stack.api_key) as client:
                await asyncio.to_thread(table, client, folder, options)


if __name__ == "__main__":
    asyncio.run(main())
