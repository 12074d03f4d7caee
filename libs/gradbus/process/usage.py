"""What processes take together with all their descendants, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process and its descendants take."""

    cpu_seconds: float
    """Since their start, ended children included."""
    rss_bytes: int
    """Resident memory."""
    held_bytes: int
    """Anonymous and shared memory: resident, without mapped files, which the system can take back."""


def tree_usage(pid: int) -> Usage | None:
    """Present usage of the tree below `pid`; None if it has ended, and on systems without /proc."""
    members = list(_members(pid))
    if not members:
        return None
    return Usage(
        sum(member.cpu_seconds for member in members),
        sum(member.rss_bytes for member in members),
        sum(member.held_bytes for member in members),
    )


def _members(root: int) -> Iterator[Usage]:
    family = [root]
    for pid in family:  # it grows on the way
        try:
            yield _own(_PROC / str(pid))
            family += _children(_PROC / str(pid))
        except OSError:  # it has ended
            continue


def _children(folder: Path) -> Iterator[int]:
    """Only of this process: the other processes of the machine cost nothing."""
    for task in folder.glob("task/*/children"):
        yield from map(int, task.read_text().split())


def _own(folder: Path) -> Usage:
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    status = (folder / "status").read_text().splitlines()
    held = sum(int(line.split()[1]) << 10 for line in status if line.startswith(("RssAnon:", "RssShmem:")))
    return Usage(sum(map(int, fields[11:15])) / _TICK, int(fields[21]) * _PAGE, held)
