"""Measures memory while a run reads a large dataset: `python loadtests/large_dataset.py [--gigabytes 5] [--folder /tmp]`.

The real stack (`gradbus up`) and the command line, which uploads the file. A run on a small dataset goes first, so that libraries and
model are loaded; what the large one adds is the dataset's. Peaks are the kernel's (`VmHWM`), reset between the two runs. The disk needs
room for four times the size. The exit status is 1 if a process that holds no model was above the limit, or one that does grew by more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MODEL = EXAMPLES.parent / ".gradbus/examples/copy/model"
SMALL_BYTES = 1_000_000
LIMIT_MB = 300
FILLER = "abcdefghijklmnopqrstuvwxyz" * 16
MODEL_HOLDERS = ("trainer", "rollout", "reference")
"""Roles with torch and a model, which are above the limit without any dataset."""
SPEC = """
name = "{name}"
model.path = "{model}"
data = {{ train = "{data}" }}
rollout = {{ slots = 16, group_size = 4, max_new_tokens = 8 }}
reward.grader = {{ type = "string_check", input = "{{{{ sample.output_text }}}}", reference = "{{{{ item.answer }}}}", operation = "eq" }}
schedule = {{ steps = 3, groups_per_step = 4 }}
algorithm.filter = "none"
"""


def write_rows(path: Path, size: int) -> int:
    """Writes about `size` bytes of rows of half a kilobyte; returns how many rows."""
    rows = 0
    with path.open("w", buffering=1 << 20) as file:
        while size > 0:
            row = f'{{"prompt": "copy {rows % 9973}", "answer": "{rows % 9973}", "source": "{FILLER}", "row": {rows}}}\n'
            size -= file.write(row)
            rows += 1
    return rows


class Peaks(threading.Thread):
    """The largest resident memory of each process of a stack and of the command line, in bytes, by name; children count apart."""

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self._state = state
        self._ended = threading.Event()
        self.command: int | None = None
        """Pid of the command that submits."""
        self.bytes: dict[str, int] = {}

    def run(self) -> None:
        """Looks ten times a second; the kernel keeps the peaks between, and those of a short-lived child are as of its last look."""
        while not self._ended.wait(0.1):
            self._look()

    def begin(self) -> None:
        """Forgets all peaks."""
        for process, _ in self._processes():
            with suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        self.bytes = {}

    def stop(self) -> None:
        """Ends the looks."""
        self._ended.set()
        self.join()

    def _look(self) -> None:
        for process, name in self._processes():
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
                self.bytes[name] = max(self.bytes.get(name, 0), peak)

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        with suppress(OSError, ValueError):
            stack = json.loads((self._state / "stack.json").read_text())
            named = {entry["pid"]: name for name, entry in stack["processes"].items()} | {stack["pid"]: "supervisor"}
            if self.command is not None:
                named[self.command] = "gradbus run"
            for pid, name in named.items():
                with suppress(psutil.Error):
                    process = psutil.Process(pid)
                    yield process, name
                    yield from ((child, f"{name}, child") for child in process.children(recursive=True) if child.pid not in named)


@contextmanager
def stack(folder: Path) -> Iterator[Path]:
    """The embedded stack."""
    state = folder / "state"
    command = [sys.executable, "-m", "gradbus.cli", "up", "--port", "0", "--state", str(state), "--detach"]
    subprocess.run(command, check=True)
    try:
        yield state
    finally:
        subprocess.run([sys.executable, "-m", "gradbus.cli", "down", "--state", str(state)], check=False)


def trained(folder: Path, state: Path, peaks: Peaks, size: int) -> dict[str, int]:
    """Peaks of a run on a dataset of this size, from its submission to its end."""
    data, spec = folder / f"rows-{size}.jsonl", folder / "run.toml"
    rows = write_rows(data, size)
    spec.write_text(SPEC.format(name=f"rows-{rows}", model=MODEL, data=data))
    peaks.begin()
    began = time.monotonic()
    submitting = subprocess.Popen([sys.executable, "-m", "gradbus.cli", "run", str(spec), "--state", str(state), "--follow"])
    peaks.command = submitting.pid
    status = submitting.wait()
    data.unlink()
    print(json.dumps({"bytes": size, "rows": rows, "seconds": round(time.monotonic() - began), "status": status}), flush=True)
    if status:
        raise SystemExit(f"the run on {rows} rows ended with status {status}; see {state / 'logs'}")
    return dict(peaks.bytes)


def is_too_large(name: str, small: int, large: int) -> bool:
    """Whether a process held more than the limit, or, if it holds a model, grew by more."""
    return (large - small if name.startswith(MODEL_HOLDERS) else large) > LIMIT_MB


def main() -> None:
    """Prints a line of JSON for each run and process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    subprocess.run([sys.executable, str(EXAMPLES / "copy/make_model.py")], check=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="large-dataset-") as name, stack(folder := Path(name)) as state:
        peaks = Peaks(state)
        peaks.start()
        small = trained(folder, state, peaks, SMALL_BYTES)
        large = trained(folder, state, peaks, int(options.gigabytes * 1e9))
        peaks.stop()
    found = {name: [round(part.get(name, 0) / 1e6) for part in (small, large)] for name in sorted(large)}
    for process, (before, after) in found.items():
        print(json.dumps({"process": process, "small_mb": before, "large_mb": after, "fits": not is_too_large(process, before, after)}))
    raise SystemExit(any(is_too_large(process, *sizes) for process, sizes in found.items()))


if __name__ == "__main__":
    main()
