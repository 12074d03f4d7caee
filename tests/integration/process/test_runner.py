"""The runner of a service, as real processes: signals, exit status, health pages, logs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta

import pytest

SCRIPT = """
import asyncio, gc, re, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from gradbus.errors import ModelError
from gradbus.process import ProcessSettings, run_process

async def read_line():
    await asyncio.to_thread(sys.stdin.readline)

async def serve(process):
    await read_line()
    process.ready = True
    await process.stopping.wait()
    await read_line()
    print("drained", flush=True)

async def leave(process):
    pass

async def crash(process):
    raise KeyError("the reason")

async def crash_with_a_secret(process):
    password = "-".join(["of", "the", "user"])
    raise KeyError(len(password))

async def time_out(process):
    raise TimeoutError("nobody answered")

async def refuse(process):
    raise ModelError("the model has no tokenizer; add one")

async def crash_in_the_drain(process):
    process.ready = True
    await process.stopping.wait()
    raise KeyError("in the drain")

async def leave_a_thread(process):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)

async def leave_an_executor(process):
    asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), threading.Event().wait)

async def freeze(process):
    process.ready = True
    await asyncio.sleep(1.0)
    time.sleep(1000)

async def hold_the_interpreter(process):
    process.ready = True
    await asyncio.sleep(1.0)
    re.match("(a+)+$", "a" * 60 + "b")  # never releases the interpreter lock

async def take_memory(process):
    bytearray(2_000_000_000)

async def make_objects(process):
    process.ready = True
    before = sum(generation["collections"] for generation in gc.get_stats())
    made = [[] for _ in range(5_000)]
    print(sum(generation["collections"] for generation in gc.get_stats()) - before, "looks for garbage", flush=True)

sys.exit(run_process("test", ProcessSettings(health=sys.argv[2]), globals()[sys.argv[1]]))
"""


@pytest.fixture
def port(free_port):
    return free_port()


@pytest.fixture
def start(port):
    started = []

    def run(main, **settings):
        command = [sys.executable, "-c", SCRIPT, main, f"127.0.0.1:{port}"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = os.environ | {f"GRADBUS_{name.upper()}": value for name, value in settings.items()}
        started.append(subprocess.Popen(command, text=True, env=environment, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def page(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def until(port, path, status):
    deadline = time.monotonic() + 60
    while page(port, path) != status:
        assert time.monotonic() < deadline, f"{path} is not {status}"
        time.sleep(0.02)


def go_on(process):
    """Sends the line that the service waits for before it is ready and before its drain ends."""
    process.stdin.write("\n")
    process.stdin.flush()


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_process_ends_well(start, port, number):
    process = start("serve")
    until(port, "/healthz", 200)
    go_on(process)
    until(port, "/readyz", 200)
    process.send_signal(number)
    until(port, "/readyz", 503)
    out, log = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (0, "drained\n")
    assert [line["event"] for line in lines(log)] == ["started", "stopped"]


def test_pages_tell_alive_from_ready(start, port):
    process = start("serve")
    until(port, "/healthz", 200)
    assert page(port, "/other") == 404
    assert page(port, "/readyz") == 503
    go_on(process)
    until(port, "/readyz", 200)


def test_a_probe_that_says_nothing_or_nonsense_harms_nobody(start, port):
    start("serve")
    until(port, "/healthz", 200)
    with socket.create_connection(("127.0.0.1", port)) as silent, socket.create_connection(("127.0.0.1", port)) as noise:
        noise.sendall(b"\x00\xff" * 50_000 + b"\r\n\r\n")
        assert page(port, "/healthz") == 200
        silent.close()


def test_a_service_that_returns_ends_well(start):
    process = start("leave")
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("main", ["leave_a_thread", "leave_an_executor"])
def test_a_thread_that_never_ends_does_not_hold_the_process(start, main):
    process = start(main)
    _, log = process.communicate(timeout=60)
    assert (process.returncode, lines(log)[-1]["event"]) == (1, "threads_did_not_end")


def test_a_frozen_event_loop_ends_the_process_with_its_stacks(start):
    process = start("freeze", frozen_seconds="3")
    _, log = process.communicate(timeout=60)
    last = lines(log)[-1]
    assert (process.returncode, last["event"], last["service"]) == (1, "event_loop_frozen", "test")
    assert any("in freeze" in stack for stack in last["stacks"].values())


def test_a_thread_that_holds_the_interpreter_ends_the_process_too(start):
    process = start("hold_the_interpreter", frozen_seconds="3")
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "in hold_the_interpreter" in log


def test_memory_beyond_the_limit_is_an_error_that_the_process_sees(start):
    process = start("take_memory", memory_limit="1GiB")
    _, log = process.communicate(timeout=60)
    assert (process.returncode, lines(log)[-1]["event"]) == (1, "crashed")
    assert "MemoryError" in log


@pytest.mark.parametrize(
    ("main", "event", "text"),
    [("crash", "crashed", "the reason"), ("time_out", "crashed", "nobody answered"), ("refuse", "stopped", "add one")],
)
def test_an_error_is_logged_and_the_status_says_so(start, main, event, text):
    process = start(main)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    last = lines(log)[-1]
    assert last["event"] == event
    assert last["service"] == "test"
    assert text in json.dumps(last)


def test_an_error_in_the_drain_is_a_crash(start, port):
    process = start("crash_in_the_drain")
    until(port, "/readyz", 200)
    process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "in the drain" in log


def test_a_taken_health_address_is_named(start, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        process = start("serve")
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "GRADBUS_HEALTH" in log


def test_a_crash_is_logged_without_the_values_of_variables(start):
    process = start("crash_with_a_secret")
    _, log = process.communicate(timeout=60)
    assert lines(log)[-1]["event"] == "crashed"
    assert "of-the-user" not in log


def test_a_process_whose_certificate_has_expired_ends_with_the_reason(start, issue, monkeypatch):
    monkeypatch.setenv("GRADBUS_TLS_DIR", str(issue("reward", lasts=timedelta(minutes=-1))))
    process = start("serve")
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "tls.crt is not valid: certificate has expired; replace it" in lines(log)[-1]["error"]


@pytest.mark.parametrize(("days", "warned"), [(29, True), (31, False)])
def test_a_certificate_that_expires_soon_is_warned_of(start, issue, monkeypatch, days, warned):
    monkeypatch.setenv("GRADBUS_TLS_DIR", str(issue("reward", lasts=timedelta(days=days))))
    process = start("leave")
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line["seconds"] // 86_400 for line in lines(log) if line["event"] == "certificate_expires_soon"] == [days - 1] * warned


def test_a_ready_process_does_not_look_for_garbage_among_the_objects_of_a_step(start):
    said, _ = start("make_objects").communicate(timeout=60)
    assert "0 looks for garbage" in said.splitlines()
