"""Log lines of nats-server and the buffer as JSON, with the fields that the lines of every service have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_FORMATS: Final = (
    # [7] 2026/11/23 07:00:00.123456 [INF] Server is ready
    (re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d [\d:.]+) \[(\w{3})\] (.*)"), "%Y/%m/%d %H:%M:%S.%f"),
    # 7:M 23 Nov 2026 07:00:00.123 * Ready to accept connections
    (re.compile(r"\d+:\w (\d\d \w{3} \d{4} [\d:.]+) ([.*#-]) (.*)"), "%d %b %Y %H:%M:%S.%f"),
)
_LEVELS: Final = {
    "TRC": "debug",
    "DBG": "debug",
    "INF": "info",
    "WRN": "warning",
    "ERR": "error",
    "FTL": "critical",
    ".": "debug",
    "-": "info",
    "*": "info",
    "#": "warning",
}
LONGEST_LINE: Final = 1 << 20
"""Bytes. A server whose line is longer has the rest of it dropped."""


def json_line(service: str, line: str) -> str:
    """One line of a server's log as JSON. A line in no known form becomes an event of the level `info`."""
    for form, time_format in _FORMATS:
        if found := form.fullmatch(line):
            with contextlib.suppress(ValueError):
                written = datetime.strptime(found[1], time_format).astimezone(UTC)
                return _rendered(service, found[3], _LEVELS.get(found[2], "info"), written)
    return _rendered(service, line, "info", datetime.now(UTC))


async def write_as_json(service: str, lines: asyncio.StreamReader, log: Path) -> None:
    """Appends the lines of a server to its log file until the server ends. A full disk loses lines, and never blocks the server."""
    while line := await _next_line(lines):
        with contextlib.suppress(OSError), log.open("a") as file:
            file.write(json_line(service, line.decode(errors="replace").rstrip()) + "\n")


async def _next_line(lines: asyncio.StreamReader) -> bytes:
    while True:
        try:
            return await lines.readline()
        except ValueError:  # longer than `LONGEST_LINE`; the reader has dropped it
            continue


def _rendered(service: str, event: str, level: str, written: datetime) -> str:
    fields = {"event": event, "service": service, "level": level, "timestamp": written.isoformat().replace("+00:00", "Z")}
    return json.dumps(fields)
