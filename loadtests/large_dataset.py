"""Measures memory while a run reads a large dataset: `python loadtests/large_dataset.py [--gigabytes 5] [--row-bytes 500] [--parquet]`.

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
from itertools import islice
from pathlib import Path

import psutil
import pyarrow as arrow
from pyarrow import parquet

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MODEL = EXAMPLES.parent / ".gradbus/examples/copy/model"
SMALL_BYTES = 1_000_000
LIMIT_MB = 300
ROWS_OF_GROUP = 10_000
"""Of a row group of Parquet."""
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


def rows_of(size: int, row_bytes: int) -> Iterator[dict[str, object]]:
    """Rows of about `row_bytes` as JSON, until they have `size` bytes."""
    filler = ("abcdefghijklmnopqrstuvwxyz" * (1 + row_bytes // 26))[: max(1, row_bytes - 80)]
    for number in range(-(-size // row_bytes)):
        yield {"prompt": f"copy {number % 9973}", "answer": f"{number % 9973}", "source": filler, "row": number}


def write_rows(path: Path, rows: Iterator[dict[str, object]]) -> int:
    """Writes rows as Parquet, or as JSON Lines; returns how many."""
    if path.suffix == ".parquet":
        return write_parquet(path, rows)
    with path.open("w", buffering=1 << 20) as file:
        return sum(1 for row in rows if file.write(f"{json.dumps(row)}\n"))


def write_parquet(path: Path, rows: Iterator[dict[str, object]]) -> int:
    """Uncompressed and without dictionaries, so that the file is as large as its rows."""
    schema = arrow.schema([("prompt", arrow.string()), ("answer", arrow.string()), ("source", arrow.string()), ("row", arrow.int64())])
    number = 0
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        while part := list(islice(rows, ROWS_OF_GROUP)):
            writer.write_table(arrow.Table.from_pylist(part, schema))
            number += len(part)
    return number


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
        """Looks twice a second; the kernel keeps the peaks between, and those of a short-lived child are as of its last look."""
        while not self._ended.wait(0.5):
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


def stored_digest(state: Path) -> str:
    """Of the newest run's rows, as they are stored: the same for the same rows in either format."""
    command = [sys.executable, "-m", "gradbus.cli", "show", "last", "--json", "--state", str(state)]
    return str(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["spec"]["data"]["train"])


def trained(folder: Path, state: Path, peaks: Peaks, size: int, options: argparse.Namespace) -> dict[str, int]:
    """Peaks of a run on a dataset of this size, from its submission to its end."""
    data, spec = folder / f"rows-{size}.{'parquet' if options.parquet else 'jsonl'}", folder / "run.toml"
    rows = write_rows(data, rows_of(size, options.row_bytes))
    spec.write_text(SPEC.format(name=f"rows-{rows}", model=MODEL, data=data))
    peaks.begin()
    began = time.monotonic()
    submitting = subprocess.Popen([sys.executable, "-m", "gradbus.cli", "run", str(spec), "--state", str(state), "--follow"])
    peaks.command = submitting.pid
    status = submitting.wait()
    print(
        json.dumps(
            {
                "bytes": data.stat().st_size,
                "rows": rows,
                "digest": stored_digest(state),
                "seconds": round(time.monotonic() - began),
                "status": status,
            }
        ),
        flush=True,
    )
    data.unlink()
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
    parser.add_argument("--row-bytes", type=int, default=500)
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    subprocess.run([sys.executable, str(EXAMPLES / "copy/make_model.py")], check=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="large-dataset-") as name, stack(folder := Path(name)) as state:
        peaks = Peaks(state)
        peaks.start()
        small = trained(folder, state, peaks, SMALL_BYTES, options)
        large = trained(folder, state, peaks, int(options.gigabytes * 1e9), options)
        peaks.stop()
    found = {name: [round(part.get(name, 0) / 1e6) for part in (small, large)] for name in sorted(large)}
    for process, (before, after) in found.items():
        print(json.dumps({"process": process, "small_mb": before, "large_mb": after, "fits": not is_too_large(process, before, after)}))
    raise SystemExit(any(is_too_large(process, *sizes) for process, sizes in found.items()))


if __name__ == "__main__":
    main()
