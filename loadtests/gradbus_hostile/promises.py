"""What an hour of hostile users may change, and by how much."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

from gradbus_hostile.attack import Ended
from gradbus_hostile.clients import CLIENTS
from gradbus_hostile.hour import Hour, Phase
from gradbus_hostile.target import KEPT_BYTES
from gradbus_load.outcome import Finding, Outcome, percentile

SPEED: Final = 0.8
"""Of the well-behaved run, beside hostile users and alone."""
END_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 1.0
_MIB: Final = 1 << 20
_SLOWEST: Final = 10


def outcome(hour: Hour) -> Outcome:
    """The findings, a table of the slowest ends, and everything that was measured."""
    phases = {"before": hour.before, "beside another run": hour.neighbours, "beside hostile users": hour.beside, "after": hour.after}
    alone = speed(chain(hour.before.runs, hour.after.runs))
    slowest = sorted(hour.ends, key=lambda ended: -ended.seconds)[:_SLOWEST]
    grown = {name: hour.memory_after.get(name, 0) - size for name, size in hour.memory_before.items()}
    findings = [
        *(Finding(f"steps of the well-behaved run, {name}", speed(phase.runs), "per s") for name, phase in phases.items()),
        Finding("alone, after / before: what this machine changes by itself", speed(hour.after.runs) / speed(hour.before.runs), ""),
        Finding("beside another run / alone", speed(hour.neighbours.runs) / alone, ""),
        Finding("beside hostile users / alone", speed(hour.beside.runs) / alone, "", SPEED),
        Finding("digests of the well-behaved run", len(hour.digests), "", 1, "less"),
        Finding("longest wait of the well-behaved run for a trainer", max(run.queued_seconds for run in hour.beside.runs), "s"),
        Finding("hostile submissions", len(hour.ends), ""),
        Finding("that ended otherwise than they may", sum(not ended.is_allowed for ended in hour.ends), "", 0, "less"),
        Finding("slowest end", slowest[0].seconds, "s", END_SECONDS, "less"),
        *(Finding(f"answers of the API, {name}: p99", percentile(phase.answers, 0.99), "s") for name, phase in phases.items()),
        Finding("answers of the API beside hostile users: p99", percentile(hour.beside.answers, 0.99), "s", ANSWER_SECONDS, "less"),
        *(Finding(f"memory that {name} gained", size / _MIB, "MiB", KEPT_BYTES / _MIB, "less") for name, size in sorted(grown.items())),
        *(Finding(f"client: {client.name}", hour.turns.get(client.name, 0), "turns", 1) for client in CLIENTS),
    ]
    rows = [(ended.submission.name, ended.end, f"{ended.seconds:.1f}") for ended in slowest]
    return Outcome("hostile", findings, ("slowest submissions", "end", "s"), rows, _data(hour, phases))


def speed(runs: Iterable[Any]) -> float:
    """Median of the runs' steps per second."""
    return statistics.median(run.steps_per_second for run in runs)


def broken(found: Outcome, hour: Hour) -> list[str]:
    """A line for each promise that does not hold, and for each submission that ended otherwise than it may."""
    lines = [
        f"{one.measure} is {one.value:.3g} {one.unit}".rstrip()
        + f"; promised is at {'least' if one.better == 'more' else 'most'} {one.floor:g}"
        for one in found.findings
        if one.holds is False
    ]
    return lines + [f"{name} ended {end} ({times} times): {cause[:300]}" for (name, end, cause), times in _wrong(hour.ends).items()]


def _wrong(ends: Iterable[Ended]) -> Counter[tuple[str, str, str]]:
    return Counter((ended.submission.name, ended.end, ended.cause) for ended in ends if not ended.is_allowed)


def _data(hour: Hour, phases: dict[str, Phase]) -> dict[str, Any]:
    counted = Counter((ended.submission.name, ended.end) for ended in hour.ends)
    longest = {name: max(ended.seconds for ended in hour.ends if ended.submission.name == name) for name, _ in counted}
    return {
        "steps_per_second": {name: [round(run.steps_per_second, 3) for run in phase.runs] for name, phase in phases.items()},
        "digests": sorted(hour.digests),
        "answers": {
            name: {
                "count": len(phase.answers),
                **{f"p{part}": round(percentile(phase.answers, part / 100), 4) for part in (50, 99)},
                "max": round(phase.answers[-1], 4),
            }
            for name, phase in phases.items()
        },
        "ends": [
            {"submission": name, "end": end, "times": times, "longest_s": round(longest[name], 2)}
            for (name, end), times in sorted(counted.items())
        ],
        "memory_mib": {
            name: {"before": size // _MIB, "after": hour.memory_after.get(name, 0) // _MIB} for name, size in hour.memory_before.items()
        },
    }
