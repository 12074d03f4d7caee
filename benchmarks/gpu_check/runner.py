"""Runs the parts one after the other, each in a process of its own with a deadline, and writes the report after each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from gpu_check.child import SKIPPED
from gpu_check.results import Check, PartResult, Report

_GRACE_SECONDS: Final = 5.0
"""From the request to end until the kill."""
_TAIL: Final = 2000
_MEMORY_FOLDER: Final = Path("/dev/shm")
_ROOM: Final = 24 << 30
"""Free bytes of the folder in memory from which on parts write there: models and versions of several gigabytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part by the module that has its `run(context)`."""

    name: str
    module: str
    seconds: float
    """Its deadline."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of its process in dry mode."""
    needed: bool = False
    """Whether the parts after it are skipped unless it passes."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the parts are run."""

    out: Path
    dry: bool = False
    seconds: float = 600.0
    """Of the whole run: a part gets no more than what is left."""


def run(parts: Sequence[Part], options: Options) -> Report:
    """The report of all parts, which is in `options.out` as far as it has come at any time."""
    began, report = time.monotonic(), Report(dry=options.dry, started=datetime.now(UTC).isoformat(timespec="seconds"))
    report.write(options.out)
    missing = ""
    for part in parts:
        print(f"{part.name} ...", file=sys.stderr, flush=True)
        report.parts.append(_result(part, report, options, options.seconds - (time.monotonic() - began), missing))
        missing = missing or (part.name if part.needed and report.parts[-1].status != "pass" else "")
        report.seconds = round(time.monotonic() - began, 1)
        report.write(options.out)
    report.judge()
    report.write(options.out)
    return report


def _result(part: Part, report: Report, options: Options, seconds: float, missing: str) -> PartResult:
    """The part's result within `seconds`; `missing` is the needed part that did not pass, if there is one."""
    if missing:
        return PartResult(part.name, "skip", f"the part {missing} did not pass, and the others need it")
    if seconds <= 0:
        return PartResult(part.name, "timeout", "no time was left for it")
    return _run_part(part, report, options.dry, min(part.seconds, seconds))


def _run_part(part: Part, report: Report, dry: bool, seconds: float) -> PartResult:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-", dir=_scratch(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / "log").open("w+b") as log:
            status = _exit_status(part, _orders(folder, report, dry), log, seconds)
            result = PartResult(part.name, "timeout", log_tail=_tail(log))
        for finding in _findings(folder / "findings"):
            _take(finding, result, report)
    wrong = [check.name for check in result.checks if check.kind == "correct" and not check.ok]
    if status == SKIPPED and not wrong:
        result.status, result.reason, result.log_tail = "skip", _last_line(result.log_tail), ""
    elif status is None:
        result.status, result.reason = ("fail" if wrong else "timeout"), f"did not end within {seconds:.0f} s"
    else:
        if status:
            result.checks.append(Check("the part ends without an error", "correct", float(status), "", 0.0, None, None, "", ok=False))
        result.status = "fail" if status or wrong else "pass"
        result.reason = _last_line(result.log_tail) if status else f"{len(wrong)} wrong, first: {wrong[0]}" if wrong else ""
    if result.status == "pass":
        result.log_tail = ""
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _orders(folder: Path, report: Report, dry: bool) -> str:
    device = "cpu" if dry else "cuda"
    scratch = folder / "scratch"
    scratch.mkdir()
    context = {"device": device, "dry": dry, "folder": str(scratch), "findings": str(folder / "findings"), "ceilings": report.probes}
    return json.dumps(context)


def _exit_status(part: Part, orders: str, log: IO[bytes], seconds: float) -> int | None:
    """The child's exit status; None if it had to be ended."""
    # One thread: toy sizes take longer with more.
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} | part.environment if json.loads(orders)["dry"] else {})
    command = [sys.executable, "-P", "-m", "gpu_check.child", part.module, orders]
    with _child(command, environment, log) as child:
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def _child(command: list[str], environment: Mapping[str, str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own; nothing of the group outlives the block."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _take(finding: dict[str, Any], result: PartResult, report: Report) -> None:
    if "check" in finding:
        result.checks.append(Check(**finding["check"]))
    else:
        getattr(report, finding["fact"]["section"]).update(finding["fact"]["values"])


def _findings(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: the last may have been cut by a kill."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL))
    return log.read().decode(errors="replace")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]


def _scratch() -> str | None:
    """A folder in memory if it has room, else the default: writing to a disk would be measured instead."""
    if _MEMORY_FOLDER.is_dir() and shutil.disk_usage(_MEMORY_FOLDER).free > _ROOM:
        return str(_MEMORY_FOLDER)
    return None
