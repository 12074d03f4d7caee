"""Lines of nats-server and the buffer, as JSON."""

import asyncio
import json
import sys
from datetime import UTC, datetime

import pytest

from gradbus.embedded.processes import Program, SupervisedProcess
from gradbus.embedded.server_logs import LONGEST_LINE, json_line

LINES = [
    ("[7] 2026/11/23 07:00:00.123456 [INF] Server is ready", "info", "Server is ready", "123456"),
    ('[7] 2026/11/23 07:00:00.123456 [WRN] slow "disk"', "warning", 'slow "disk"', "123456"),
    (
        "7:M 23 Nov 2026 07:00:00.123 * Ready to accept connections",
        "info",
        "Ready to accept connections",
        "123000",
    ),
    ("7:M 23 Nov 2026 07:00:00.123 # Out of memory", "warning", "Out of memory", "123000"),
]


@pytest.mark.parametrize(("line", "level", "event", "written"), LINES)
def test_a_line_keeps_its_level_its_text_and_its_time(line, level, event, written):
    found = json.loads(json_line("nats", line))
    assert (found["service"], found["level"], found["event"]) == ("nats", level, event)
    assert datetime.fromisoformat(found["timestamp"]) == datetime.fromisoformat(f"2026-11-23T07:00:00.{written}").astimezone(UTC)


@pytest.mark.parametrize("line", ["", "panic: out of memory", "[7] 2026/99/99 07:00:00.1 [INF] no such day"])
def test_any_other_line_is_an_event(line):
    found = json.loads(json_line("buffer", line))
    assert (found["event"], found["level"]) == (line, "info")


async def test_the_log_of_a_server_is_json_to_its_last_line(tmp_path):
    source = f"print('first'); print('x' * {2 * LONGEST_LINE}); print('[7] 2026/11/23 07:00:00.1 [ERR] last', end='')"
    log = tmp_path / "nats.log"
    process = SupervisedProcess("nats", lambda: Program([sys.executable, "-c", source], {}, log, logs_json=False), lambda: None)
    process.start()
    async with asyncio.timeout(60):
        while not log.exists() or "last" not in log.read_text():  # noqa: ASYNC110 - a file does not signal
            await asyncio.sleep(0.02)
    await process.stop(1.0)
    found = [json.loads(line) for line in log.read_text().splitlines()]
    last = next(line for line in found if line["event"].endswith("last"))  # the process is started again, and may write more
    assert (found[0]["event"], last["level"]) == ("first", "error")
