"""CPU seconds and memory of processes by name."""

from __future__ import annotations

from collections.abc import Mapping

from gradbus.process.usage import Usage, tree_usage


def usage(roots: Mapping[str, int]) -> dict[str, Usage]:
    """Name to usage of the process tree under its pid. An ended tree has no entry."""
    found = {name: tree_usage(pid) for name, pid in roots.items()}
    return {name: taken for name, taken in found.items() if taken is not None}


def cpu_seconds(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """Usage of each process between two readings, largest first; a restarted process counts from its start."""
    spent = {}
    for name, now in after.items():
        then = before[name].cpu_seconds if name in before else 0.0
        spent[name] = now.cpu_seconds - then if now.cpu_seconds >= then else now.cpu_seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))
