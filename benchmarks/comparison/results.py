"""The rows of a comparison and their tables, kept in one JSON file with one section for each size and dtype."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

COLUMNS = {
    "seconds_per_step": "seconds per step",
    "steps_per_second": "steps per second",
    "cpu_seconds_per_step": "CPU seconds per step",
    "trained_tokens_per_second": "trained tokens per second",
    "peak_gib": "peak memory of the trainer's process, GiB",
    "reward": "reward",
    "accuracy": "held-out accuracy",
}
"""Measurements and their names; rows that lack one leave it out."""
OURS = "Gradbus"


def store(file: Path, key: str, section: Row) -> dict[str, Row]:
    """Replaces the section `key` of the JSON file and returns all sections; those of other sizes stay."""
    sections: dict[str, Row] = json.loads(file.read_text()) if file.exists() else {}
    sections[key] = section
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sections, indent=1) + "\n")
    return sections


def document(sections: dict[str, Row]) -> str:
    """All sections as Markdown."""
    return "\n".join(["# Gradbus beside TRL", "", *(line for key, section in sections.items() for line in _section(key, section))])


def _section(key: str, section: Row) -> Iterator[str]:
    yield from (f"## {key}", "", f"{section['machine']}. {section['protocol']}", "")
    yield from _table(section["results"])
    yield ""
    if services := [row["cpu_by_service"] for row in section["results"] if "cpu_by_service" in row]:
        yield from (_services(services), "")
    if section["trial"]:
        yield from ("All of TRL's settings, tried once:", "")
        yield from _trial(section["trial"])
        yield ""


def _table(results: Sequence[Row]) -> Iterator[str]:
    """Medians over the rounds with least and most, and the ratios of the medians."""
    systems = sorted({row["system"] for row in results}, key=lambda system: (system != OURS, system))
    heads = [*systems, *(f"{OURS} / {other}" for other in systems if other != OURS)]
    yield f"| median (least to most) | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for column, name in COLUMNS.items():
        values = {system: [row[column] for row in results if row["system"] == system and column in row] for system in systems}
        if not all(values.values()):
            continue
        medians = {system: statistics.median(found) for system, found in values.items()}
        cells = [f"{_shown(medians[system])} ({_shown(min(found))} to {_shown(max(found))})" for system, found in values.items()]
        ratios = [f"{medians[OURS] / medians[other]:.2f}" for other in systems if other != OURS and OURS in medians]
        yield f"| {name} | {' | '.join(cells + ratios)} |"


def _services(rounds: Sequence[dict[str, float]]) -> str:
    """The median CPU seconds of a step by service, and the share of all but trainer and rollout."""
    names = sorted({name for spent in rounds for name in spent})
    medians = {name: statistics.median(spent.get(name, 0.0) for spent in rounds) for name in names}
    total = sum(medians.values())
    spent = ", ".join(f"{name} {_shown(medians[name])}" for name in sorted(names, key=lambda name: -medians[name]))
    others = total - medians.get("trainer", 0.0) - medians.get("rollout", 0.0)
    return f"{OURS}'s CPU seconds of a step: {spent}. All but trainer and rollout: {100 * others / total:.1f} %."


def _trial(rows: Sequence[Row]) -> Iterator[str]:
    yield from ("| TRL | seconds per step | CPU seconds per step | peak GiB |", "|---|---|---|---|")
    for row in rows:
        numbers = [_shown(row[column]) for column in ("seconds_per_step", "cpu_seconds_per_step", "peak_gib")] if "peak_gib" in row else []
        yield f"| {row['system']} | {' | '.join(numbers) if numbers else row['failure'] + ' | | '} |"


def _shown(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
