"""What a run of the check says: as JSON, rewritten after each part, and as a table.

`{schema, dry, started, seconds, device{}, versions{}, probes{}, parts[], verdict}`. A part is `{name, status, reason, seconds, checks[],
log_tail}`, a check `{name, kind, value, unit, bound, expected, share, ceiling, ok}`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

SCHEMA: Final = "gradbus.gpu_check/1"
Status = Literal["pass", "fail", "skip", "timeout"]
Verdict = Literal["pass", "fail", "incomplete"]


@dataclass(frozen=True, slots=True)
class Check:
    """One number of a part. A check of kind `correct` decides the verdict; a `speed` is only told."""

    name: str
    kind: Literal["correct", "speed"]
    value: float | None
    """None if it was not finite."""
    unit: str
    bound: float | None
    """`correct`: the largest value that passes. `speed`: the least share of the ceiling that was hoped for, or None."""
    expected: float | None
    """What arithmetic or an earlier run leads to expect, in `unit`."""
    share: float | None
    """`speed`: the value as a share of `ceiling`, which this run has probed."""
    ceiling: str
    """Name of the probe, or how the ceiling follows from the probes; empty for `correct`."""
    ok: bool


@dataclass(slots=True)
class PartResult:
    """One part of the run."""

    name: str
    status: Status
    reason: str = ""
    """Why it was skipped, or what ended it."""
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    log_tail: str = ""


@dataclass(slots=True)
class Report:
    """A whole run, or as much of it as there is yet."""

    schema: str = SCHEMA
    dry: bool = False
    started: str = ""
    """UTC, ISO 8601."""
    seconds: float = 0.0
    device: dict[str, Any] = field(default_factory=dict)
    """`name`, `sm` (compute capability), `memory` in bytes, `driver`."""
    versions: dict[str, str] = field(default_factory=dict)
    probes: dict[str, float] = field(default_factory=dict)
    """Ceilings of this machine, probed first: bytes or floating-point operations a second."""
    parts: list[PartResult] = field(default_factory=list)
    verdict: Verdict = "incomplete"

    def write(self, path: Path) -> None:
        """Replaces the file as a whole, so that a kill at any time leaves a valid one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")
        os.replace(new, path)

    def judge(self) -> None:
        """Sets the verdict of a run that is over."""
        states = {part.status for part in self.parts}
        self.verdict = "fail" if "fail" in states else "incomplete" if "timeout" in states or "pass" not in states else "pass"


def finite(value: float) -> float | None:
    """The number, or None for one that JSON does not have."""
    return float(value) if math.isfinite(value) else None


def table(report: Report) -> str:
    """Every check in a line, then the verdict."""
    rows = [("part", "check", "value", "bound", "share of ceiling", "")]
    for part in report.parts:
        rows.append((part.name, part.reason, f"{part.seconds:.1f} s", "", "", part.status.upper()))
        rows += [("", *_cells(check)) for check in part.checks]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    counts = ", ".join(f"{sum(part.status == state for part in report.parts)} {state}" for state in ("pass", "fail", "skip", "timeout"))
    device = report.device.get("name", "unknown device")
    return "\n".join([*lines, "", f"{report.verdict.upper()} on {device} in {report.seconds:.0f} s: {counts}"])


def _cells(check: Check) -> tuple[str, str, str, str, str]:
    value = "not finite" if check.value is None else f"{check.value:.4g} {check.unit}".rstrip()
    if check.kind == "correct":
        return check.name, value, "" if check.bound is None else f"<= {check.bound:.3g}", "", "ok" if check.ok else "WRONG"
    share = "" if check.share is None else f"{check.share:.0%} of {check.ceiling}"
    return check.name, value, "" if check.bound is None else f">= {check.bound:.0%}", share, "" if check.ok else "slow"
