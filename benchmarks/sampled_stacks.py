"""The stacks that py-spy samples in the processes of a stack: whose they are, and to which part of a service they belong."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import dropwhile
from typing import Final

Stack = tuple[str, ...]
"""Frames from the outermost to the innermost, each as `function (file)`, at first with the line."""
EVENT_LOOP: Final = "event loop"
SELECT: Final = "select"
_PROCESS: Final = re.compile(r'process (\d+):"(.*)"')
_OURS: Final = re.compile(r"\((gradbus\w*/[\w/]+)\.py")
_OUTER: Final = re.compile(
    r"\((<frozen runpy>|threading|gradbus/process/|gradbus/embedded/__main__|\w+/__main__|asyncio/(runners|base_events|events))"
)
"""Every stack begins with such frames, which tell nothing."""
_LIBRARY: Final = re.compile(r"\((nats|redis|grpc|opentelemetry|uvicorn|fastapi)/")


def parse_collapsed(text: str) -> Counter[Stack]:
    """Lines of `frame;frame;frame count`."""
    stacks: Counter[Stack] = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        if frames:
            stacks[tuple(frames.split(";"))] += int(count)
    return stacks


def by_service(stacks: Mapping[Stack, int], names: Mapping[int, str]) -> dict[str, Counter[Stack]]:
    """Samples by service, without line numbers, outer frames and the frames that name processes.

    `names` has the service of each process.
    """
    found: dict[str, Counter[Stack]] = defaultdict(Counter)
    for frames, count in stacks.items():
        processes = [match for frame in frames if (match := _PROCESS.match(frame))]
        inner = tuple(re.sub(r":\d+\)$", ")", frame) for frame in frames if not _PROCESS.match(frame))
        if inner and processes and (name := names.get(int(processes[-1][1]))):
            found[name][tuple(dropwhile(_OUTER.search, inner[:-1])) + inner[-1:]] += count
    return found


def part_of(frames: Stack) -> str:
    """The package of the innermost frame of this repository, for what it asks of a library is its own cost.

    Without such a frame it is the client or server library whose task or callback it is, `select`, or the event loop.
    """
    if frames[-1].endswith("(selectors.py)"):
        return SELECT
    for frame in reversed(frames):
        if (found := _OURS.search(frame)) and not _OUTER.search(frame):
            package, *inner = found[1].split("/")
            return ".".join([package, *(inner[:-1] or inner)])
    return next((found[1] for frame in frames if (found := _LIBRARY.search(frame))), EVENT_LOOP)


def service_of(command: str) -> str:
    """The service that a command line starts; empty for a helper process of a service."""
    if found := re.search(r"-m (?:gradbus_(\w+)|gradbus\.embedded)", command):
        return found[1] or "supervisor"
    server = re.search(r"(nats|valkey|redis)-server$", command.partition(" ")[0])
    return ("nats-server" if server[1] == "nats" else "buffer") if server else ""
