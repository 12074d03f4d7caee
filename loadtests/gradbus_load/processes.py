"""CPU seconds and memory of processes and all their children, read from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Current usage of one process tree."""

    cpu_seconds: float
    rss_bytes: int


def usage(roots: Mapping[str, int]) -> dict[str, Usage]:
    """Name to usage of the process tree under its pid, including CPU time of ended children. An ended tree has no entry."""
    stats = dict(_stats())
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found = {}
    for name, root in roots.items():
        tree = [stats[pid] for pid in _tree(root, children) if pid in stats]
        if tree:
            found[name] = Usage(sum(stat.ticks for stat in tree) / _TICK, sum(stat.pages for stat in tree) * _PAGE)
    return found


def cpu_seconds(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """Usage of each process between two readings, largest first; a restarted process counts from its start."""
    spent = {}
    for name, now in after.items():
        then = before[name].cpu_seconds if name in before else 0.0
        spent[name] = now.cpu_seconds - then if now.cpu_seconds >= then else now.cpu_seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    ticks: int
    pages: int


def _stats() -> Iterable[tuple[int, _Stat]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                yield int(folder.name), _Stat(int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))


def _tree(root: int, children: Mapping[int, list[int]]) -> list[int]:
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found
