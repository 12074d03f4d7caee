"""deploy/compose/json_lines.sh prints a server's lines as JSON, and ends as the server does."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SCRIPT = Path(__file__).parents[3] / "deploy/compose/json_lines.sh"
UNTIL_TERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("[7] 2026/11/23 06:19:52.1 [WRN] the last line"))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True, scope="module", params=["this machine's", "busybox"])
def programs(request, tmp_path_factory):
    """The servers' real images have busybox's programs alone."""
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        if request.param == "busybox":
            busybox = shutil.which("busybox") or pytest.skip("busybox is not installed")
            for name in ("sh", "awk", "rm", "mkfifo", "cat", "sleep"):
                (folder / name).symlink_to(busybox)
            patch.setenv("PATH", str(folder))
        yield


def printed(service, output):
    file = Path(os.environ["TMPDIR"], "output")
    file.write_bytes(output)
    done = subprocess.run(["sh", SCRIPT, service, "cat", file], capture_output=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("service", "line", "level", "timestamp", "event"),
    [
        ("nats", "[7] 2026/11/23 06:19:52.123456 [INF] Server is ready", "info", "2026-11-23T06:19:52.123456Z", "Server is ready"),
        ("nats", "[7] 2026/11/23 06:19:52.1 [WRN] full", "warning", "2026-11-23T06:19:52.1Z", "full"),
        ("nats", "[7] 2026/11/23 06:19:52.1 [ERR] no", "error", "2026-11-23T06:19:52.1Z", "no"),
        ("nats", "[7] 2026/11/23 06:19:52.1 [FTL] end", "critical", "2026-11-23T06:19:52.1Z", "end"),
        ("buffer", "8:M 03 Feb 2026 06:35:52.254 * Ready", "info", "2026-02-03T06:35:52.254Z", "Ready"),
        ("buffer", "8:C 23 Dec 2026 06:35:52.254 # WARNING x", "warning", "2026-12-23T06:35:52.254Z", "WARNING x"),
        ("buffer", "8:M 23 May 2026 06:35:52.254 - verbose", "debug", "2026-05-23T06:35:52.254Z", "verbose"),
        ("objects", "I1123 06:19:52.123456 master.go:269 Start", "info", None, "master.go:269 Start"),
        ("objects", "E1123 06:19:52.123456 volume.go:1 disk", "error", None, "volume.go:1 disk"),
        ("objects", "panic: no", "info", None, "panic: no"),
    ],
)
def test_level_and_time_of_a_line_become_fields(service, line, level, timestamp, event):
    (found,) = printed(service, line.encode() + b"\n")
    times = {} if timestamp is None else {"timestamp": timestamp}
    assert found == {"service": service, "level": level, "event": event} | times


@settings(max_examples=30)
@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])), st.sampled_from(["nats", "buffer", "objects"]))
def test_any_text_becomes_the_event_of_one_object(text, service):
    (found,) = printed(service, f"  {text}\n".encode())
    assert found == {
        "service": service,
        "level": "info",
        "event": "".join(" " if ord(each) < 32 or ord(each) == 127 else each for each in f"  {text}"),
    }


def test_a_line_is_printed_when_it_comes(tmp_path):
    seen = tmp_path / "seen"
    server = f"echo one; at=0; until [ -e {seen} ] || [ $at = 100 ]; do sleep 0.1; at=$((at + 1)); done; [ -e {seen} ] && echo two"
    with subprocess.Popen(["sh", SCRIPT, "nats", "sh", "-c", server], stdout=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline())["event"] == "one"
        seen.touch()
        assert json.loads(process.stdout.readline() or "{}").get("event") == "two"


def test_the_status_is_the_servers_and_what_it_wrote_to_standard_error_is_printed():
    done = subprocess.run(["sh", SCRIPT, "nats", "sh", "-c", "echo no >&2; exit 5"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 5
    assert json.loads(done.stdout)["event"] == "no"


def test_the_signal_to_stop_reaches_the_server_whose_last_line_is_printed():
    command = ["sh", SCRIPT, "nats", sys.executable, "-c", UNTIL_TERM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["event"] == "ready"
        os.kill(process.pid, signal.SIGTERM)
        assert [json.loads(line)["event"] for line in process.stdout] == ["the last line"]
        assert process.wait(60) == 1
