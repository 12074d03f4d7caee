"""Outcomes as a table on the terminal, as Markdown and JSON, and as plots."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradbus_load.outcome import Finding, Outcome


@dataclass(frozen=True, slots=True)
class Session:
    """Time and machine of the measurements."""

    date: str
    machine: dict[str, str]
    load_before: str
    load_after: str
    probes: list[Finding]
    outcomes: list[Outcome]


def text(session: Session) -> str:
    """The report as Markdown, with aligned tables."""
    parts = ["# Load", "", *(f"- {name}: {value}" for name, value in _session_rows(session)), "", "## The machine itself", ""]
    parts += [*_table(("probe", "value", "unit"), [(one.measure, _number(one.value), one.unit) for one in session.probes]), ""]
    for outcome in session.outcomes:
        findings = [(one.measure, _number(one.value), one.unit, _floor(one)) for one in outcome.findings]
        parts += [f"## {outcome.scenario}", "", *_table(("measure", "value", "unit", "floor"), findings), ""]
        if outcome.rows:
            parts += [*_table(outcome.header, outcome.rows), ""]
        if outcome.plot:
            parts += [f"![{outcome.scenario}]({outcome.scenario}.png)", ""]
    return "\n".join(parts)


def write(session: Session, folder: Path, name: str = "load") -> list[Path]:
    """Writes `<name>.md` and the data and plot of each scenario; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.md"]
    files[0].write_text(text(session))
    for outcome in session.outcomes:
        found = dict(_session_rows(session)) | {
            "findings": [dataclasses.asdict(one) | {"holds": one.holds} for one in outcome.findings],
            "probes": [dataclasses.asdict(one) for one in session.probes],
            "data": outcome.data,
        }
        files.append(folder / f"{outcome.scenario}.json")
        files[-1].write_text(json.dumps(found, ensure_ascii=False) + "\n")
        if outcome.plot:
            files.append(folder / f"{outcome.scenario}.png")
            _draw(outcome, files[-1])
    return files


def _session_rows(session: Session) -> list[tuple[str, str]]:
    return [
        ("date", session.date),
        *session.machine.items(),
        ("load average before", session.load_before),
        ("load average after", session.load_after),
    ]


def _draw(outcome: Outcome, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only with the load requirements

    mpl.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415 - after the backend is chosen

    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
    assert outcome.plot is not None
    outcome.plot(json.loads(json.dumps(outcome.data)), axes)
    axes.set_title(outcome.scenario)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _floor(finding: Finding) -> str:
    if finding.floor is None:
        return ""
    sign = "≥" if finding.better == "more" else "≤"
    return f"{sign} {_number(finding.floor)}: {'held' if finding.holds else 'missed'}"
