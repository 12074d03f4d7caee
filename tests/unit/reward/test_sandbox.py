"""What a user's Python cannot do, tried from inside."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import uvloop

from gradbus.errors import UserCodeError
from gradbus.niceness import USERS_NICENESS
from gradbus.sandbox import process as confined
from gradbus.sandbox import seccomp
from gradbus.sandbox.confinement import Confinement
from gradbus.sandbox.process import SourceError
from gradbus.v1 import reward_pb2
from gradbus_reward.graders import functions
from gradbus_reward.sandbox import process
from gradbus_reward.sandbox.process import PYTHON, GraderProcess

OK, INVALID = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID

SIGNAL_BY_PIPE = "import fcntl, os\ndef grade(s, i):\n    r, w = os.pipe()\n"
REFUSED = {
    "tcp": "import socket\ndef grade(s, i):\n    socket.create_connection(('127.0.0.1', 4222), 1)",
    "udp": "import socket\ndef grade(s, i):\n    socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "unix socket": "import socket\ndef grade(s, i):\n    socket.socket(socket.AF_UNIX)",
    "fork": "import os\ndef grade(s, i):\n    os.fork()",
    "subprocess": "import subprocess\ndef grade(s, i):\n    subprocess.run(['/bin/true'])",
    "exec": "import os\ndef grade(s, i):\n    os.execv('/bin/true', ['true'])",
    "thread": "import threading\ndef grade(s, i):\n    threading.Thread(target=print).start()",
    "kill the service": "import os\ndef grade(s, i):\n    os.kill(os.getppid(), 0)",
    "read the service": "import os\ndef grade(s, i):\n    return len(open(f'/proc/{os.getppid()}/environ', 'rb').read())",
    "read a file": "def grade(s, i):\n    return len(open('/etc/passwd').read())",
    "list a folder": "import os\ndef grade(s, i):\n    return len(os.listdir('/tmp'))",
    "write a file": "def grade(s, i):\n    open('/tmp/written-by-a-grader', 'w').write('x')",
    "empty a file": "import os\ndef grade(s, i):\n    os.truncate(s['output_text'], 0)",
    "open a file to all": "import os\ndef grade(s, i):\n    os.chmod(s['output_text'], 0o777)",
    "give a file away": "import os\ndef grade(s, i):\n    os.chown(s['output_text'], 65534, 65534)",
    "date a file back": "import os\ndef grade(s, i):\n    os.utime(s['output_text'], (0, 0))",
    "mark a file": "import os\ndef grade(s, i):\n    os.setxattr(s['output_text'], 'user.x', b'x')",
    "remove a file": "import os\ndef grade(s, i):\n    os.unlink(s['output_text'])",
    "rename a file": "import os\ndef grade(s, i):\n    os.rename(s['output_text'], s['output_text'] + '.x')",
    "link a file": "import os\ndef grade(s, i):\n    os.link(s['output_text'], s['output_text'] + '.x')",
    "slow the service": "import os\ndef grade(s, i):\n    os.sched_setaffinity(os.getppid(), {0})",
    "leave its group": "import os\ndef grade(s, i):\n    os.setpgid(0, 0)",
    "raise a limit": "import resource as r\ndef grade(s, i):\n    r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
    "look for a file": "import os\ndef grade(s, i):\n    os.stat(s['output_text'])",
    "look for a link": "import os\ndef grade(s, i):\n    os.lstat('/etc/passwd')",
    "look by handle": "import os\ndef grade(s, i):\n    os.open('/etc/passwd', os.O_PATH)",
    "follow a link": "import os\ndef grade(s, i):\n    os.readlink('/proc/self/exe')",
    "ask about the disk": "import os\ndef grade(s, i):\n    os.statvfs('/')",
    "change the folder": "import os\ndef grade(s, i):\n    os.chdir('/usr')",
    "change the root": "import os\ndef grade(s, i):\n    os.chroot('/usr')",
    "signal by a pipe": f"{SIGNAL_BY_PIPE}    fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
    "choose that signal": f"{SIGNAL_BY_PIPE}    fcntl.fcntl(r, 10, 9)",
    "signal by ioctl": f"{SIGNAL_BY_PIPE}    fcntl.ioctl(r, 0x8901, b'1234')",
    "take the others' pipes": f"{SIGNAL_BY_PIPE}    fcntl.fcntl(r, 1031, 1 << 20)",
    "take a higher priority": "import os\ndef grade(s, i):\n    os.setpriority(os.PRIO_PROCESS, 0, 0)",
    "take all memory": "def grade(s, i):\n    return len('x' * (2 << 30))",
    "third-party code": "def grade(s, i):\n    import grpc",
    "the service's code": "def grade(s, i):\n    import gradbus",
}


RAW_SOCKET = """
import ctypes
def grade(s, i):
    libc = ctypes.CDLL(None, use_errno=True)
    return {'reward': libc.socket(2, 1, 0), 'errno': ctypes.get_errno()}
"""
FLOOD = """
import os, sys
def grade(s, i):
    print('x' * 5_000_000)
    sys.stderr.write('y' * 5_000_000)
    os.write(1, b'z' * 100_000)
    return 1.0
"""
# Lines of a grader's own making, written wherever the pipe to the service may be.
FORGE = """
import os
def forge(body):
    for n in (3, 4, 5):
        try:
            os.write(n, body + bytes([10]))
        except OSError:
            pass
"""


@pytest.mark.parametrize("deed", REFUSED)
async def test_the_attempt_is_refused_and_the_result_says_so(grade, deed, tmp_path):
    victim = tmp_path / "blob"
    victim.write_text("content")
    before = victim.stat()
    (answer,) = await grade(REFUSED[deed], str(victim))
    assert answer.status == INVALID, answer
    assert "line" in answer.reason
    after = victim.stat()
    assert (victim.read_text(), list(tmp_path.iterdir())) == ("content", [victim])
    assert (after.st_mode, after.st_uid, after.st_mtime) == (before.st_mode, before.st_uid, before.st_mtime)


async def test_every_layer_holds_here_and_raw_system_calls_are_refused_too(grade):
    (answer,) = await grade(RAW_SOCKET)
    assert (answer.reward, answer.components["errno"]) == (-1.0, 1.0)


async def test_its_root_holds_the_standard_library_and_nothing_else(grade, tmp_path):
    source = """
import os
def exists(path):
    try:
        os.stat(path)
    except OSError:
        return 0
    return 1
def grade(s, i):
    return {'reward': 0, 'library': exists(os.__file__), 'victim': exists(s['output_text']), 'proc': exists('/proc'), 'etc': exists('/etc')}
"""
    (answer,) = await grade(source, str(tmp_path))
    assert dict(answer.components) == {"library": 1.0, "victim": 0.0, "proc": 0.0, "etc": 0.0}


async def test_all_layers_hold_here():
    grader = await GraderProcess.start({"grader": "def grade(s, i): return 1"}, allow_network=False)
    await grader.stop()
    assert grader.layers == Confinement(seccomp=True, namespace=True, landlock=True, root=True)


async def test_when_memory_ends_it_is_killed_before_any_service():
    def badness(pid):
        return Path(f"/proc/{pid}/oom_score_adj").read_text()

    grader = await GraderProcess.start({"grader": "def grade(s, i): return 1"}, allow_network=False)
    assert badness(grader.pid) == "1000\n"
    await grader.stop()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_computes_at_a_lower_priority_in_the_services_session_and_stands_still_when_it_is_paused(new_loop):
    async def start_and_pause():
        grader = await GraderProcess.start({"grader": "def grade(s, i): return 1"}, allow_network=False)
        own, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, grader.pid))
        assert its == min(own + USERS_NICENESS, 19)
        assert (os.getsid(grader.pid), os.getpgid(grader.pid)) == (os.getsid(0), grader.pid)
        await until(lambda: psutil.Process(grader.pid).status() == psutil.STATUS_STOPPED)
        await grader.grade([("text", "stop", "{}")], 60.0, print)
        assert await grader.stop() == -signal.SIGKILL

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(start_and_pause())


async def test_an_alarm_of_its_own_is_allowed(grade):
    source = """
import signal, time
def late(*_):
    raise TimeoutError('too slow')
def grade(s, i):
    signal.signal(signal.SIGALRM, late)
    signal.alarm(1)
    time.sleep(60)
"""
    (answer,) = await grade(source)
    assert (answer.status, "too slow" in answer.reason) == (INVALID, True)


async def test_a_grader_that_ignores_all_signals_is_killed_like_any_other(grade):
    source = """
import signal
for n in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def grade(s, i):
    while True: pass
"""
    (answer,) = await grade(source, seconds=2.0)
    assert answer.status == reward_pb2.REWARD_STATUS_ERROR
    assert "stopped after" in answer.reason


@pytest.mark.parametrize("grows", ["keep.append(bytearray(1 << 20))", "keep.append(__import__('mmap').mmap(-1, 1 << 20))"])
async def test_memory_that_grows_from_sample_to_sample_ends_at_the_limit(grade, grows):
    source = f"keep = []\ndef grade(s, i):\n    for _ in range(200): {grows}\n    return len(keep)"
    answers = await grade(source, *"abcd")
    assert [answer.status for answer in answers[:2]] == [OK, OK]
    assert INVALID in {answer.status for answer in answers}, "an error of the user's code: MemoryError or OSError"


async def test_the_environment_is_empty(grade, monkeypatch):
    monkeypatch.setenv("GRADBUS_SECRET", "x")
    (answer,) = await grade("import os\ndef grade(s, i):\n    return len([k for k in os.environ if k != 'LC_CTYPE'])")
    assert (answer.status, answer.reward) == (OK, 0.0)


async def test_only_its_pipes_and_dev_null_are_open(grade):
    source = """
import os
def grade(s, i):
    found = 0
    for n in range(64):
        try:
            os.fstat(n)
            found += 1
        except OSError:
            pass
    return found
"""
    (answer,) = await grade(source)
    assert answer.reward == 5.0


async def test_the_standard_library_is_there(grade):
    (answer,) = await grade("import re, math, json, decimal, fractions, statistics, datetime\ndef grade(s, i):\n    return math.sqrt(4)")
    assert (answer.status, answer.reward) == (OK, 2.0)


async def test_a_flood_of_output_harms_nobody(grade):
    assert [answer.reward for answer in await grade(FLOOD, "a", "b", "c")] == [1.0, 1.0, 1.0]


FORGED = ["{}", "[0, {}]", "[0, []]", "[0, [{}, {}]]", "[1, [{}]]", "abc", "[" * 50_000]


@pytest.mark.parametrize("line", FORGED)
async def test_a_grader_that_writes_into_its_pipe_gives_itself_no_reward(grade, line):
    (answer,) = await grade(f"{FORGE}\ndef grade(s, i):\n    forge({line.encode()!r})\n    return 1.0", seconds=4.0)
    assert (answer.status, answer.reward) == (reward_pb2.REWARD_STATUS_ERROR, 0.0)


async def test_a_response_much_longer_than_its_samples_need_is_not_read(grade):
    (answer,) = await grade(f"{FORGE}\ndef grade(s, i):\n    forge(b'[' + b'{{}},' * 1_000_000 + b'{{}}]')\n    return 1.0", seconds=60.0)
    assert (answer.status, answer.reward) == (reward_pb2.REWARD_STATUS_ERROR, 0.0)
    assert "256 KiB at once" in answer.reason


async def test_a_flood_that_nobody_reads_holds_up_no_end():
    """asyncio pauses a pipe of which much is unread, and then does not see that the process has ended."""
    grader = await GraderProcess.start({"grader": f"{FORGE}\ndef grade(s, i):\n    forge(b' ' * 1_000_000)"}, allow_network=False)
    grader._signal(signal.SIGCONT)
    await grader._send([False, [("", "stop", "{}")]])
    await until(lambda: grader._process.stdout._paused)
    assert await grader.stop() < 0


@pytest.mark.parametrize("body", ['{"faults": 3}', "[]", '{"faults": {}}{'])
async def test_a_source_that_speaks_for_the_child_while_it_loads_is_found_out(grade, body):
    (answer,) = await grade(f"{FORGE}\nforge({body.encode()!r})\ndef grade(s, i): return 1.0", seconds=4.0)
    assert (answer.status, answer.reward) == (reward_pb2.REWARD_STATUS_ERROR, 0.0)


BIG = "1" + "0" * 400


@pytest.mark.parametrize("reward", ["1e999", "NaN", BIG, '"x"', "null"])
async def test_a_result_forged_in_the_pipe_is_checked_like_any_other(grade, reward):
    body = f'[0, [{{"grader": [{reward}, {{}}]}}]]'.encode()
    (answer,) = await grade(f"{FORGE}\ndef grade(s, i):\n    forge({body!r})\n    os._exit(0)", seconds=4.0)
    assert (answer.status, answer.reward) == (reward_pb2.REWARD_STATUS_ERROR, 0.0)


async def test_a_source_that_does_not_load_is_named():
    with pytest.raises(SourceError, match=r"ZeroDivisionError.*line 1"):
        await GraderProcess.start({"grader": "1 / 0"}, allow_network=False)


async def test_a_source_that_never_loads_is_killed(monkeypatch):
    monkeypatch.setattr(process, "LOAD_SECONDS", 0.5)
    before = set(psutil.Process().children())
    with pytest.raises(SourceError, match="did not load"):
        await GraderProcess.start({"grader": "while True: pass"}, allow_network=False)
    await until(lambda: set(psutil.Process().children()) <= before)


async def test_a_machine_too_busy_to_start_a_process_is_not_the_users_fault(grade, monkeypatch):
    monkeypatch.setattr(confined, "START_SECONDS", 0.0)
    (answer,) = await grade("def grade(s, i): return 1.0")
    assert (answer.status, answer.permanent, "too busy" in answer.reason) == (reward_pb2.REWARD_STATUS_ERROR, False, True)


async def test_a_machine_that_starts_no_process_at_all_is_not_the_users_fault(grade, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    (answer,) = await grade("def grade(s, i): return 1.0")
    assert (answer.status, answer.permanent) == (reward_pb2.REWARD_STATUS_ERROR, False)
    assert "no process could be started" in answer.reason


async def test_without_isolation_nothing_runs_unless_the_operator_says_so():
    """A kernel that refuses both layers, played by a boot line that skips them."""
    unconfined = "import gradbus.sandbox.child as c; from gradbus.sandbox.confinement import Confinement; "
    unconfined += "c.confine = lambda *_: Confinement(False, False, False); "
    program = replace(
        PYTHON, boot=f"import sys; sys.path[:0] = sys.argv[1:3]; {unconfined} from gradbus_reward.sandbox import child; child.main()"
    )
    with pytest.raises(UserCodeError, match="seccomp"):
        await GraderProcess.start({"grader": "def grade(s, i): return 1"}, program, allow_network=False)
    grader = await GraderProcess.start({"grader": "def grade(s, i): return 1"}, program, allow_network=True)
    results = []
    await grader.grade([("", "stop", "{}")], 60.0, results.append)
    assert results == [{"grader": [1.0, {}]}]
    await grader.stop()


async def test_the_filter_alone_keeps_the_network_away(grade, monkeypatch):
    """As in a container, whose kernel gives no user namespaces: played by a flag that no kernel knows."""
    no_namespace = "import gradbus.sandbox.confinement as c; c._CLONE_NEWUSER = 1 << 20; "
    run = "from gradbus_reward.sandbox import child; child.main()"
    boot = f"import sys; sys.path[:0] = sys.argv[1:3]; {no_namespace}{run}"
    monkeypatch.setattr(functions, "PYTHON", replace(PYTHON, boot=boot))
    (answer,) = await grade(RAW_SOCKET)
    assert (answer.reward, answer.components["errno"]) == (-1.0, 1.0)
    for deed in ("fork", "kill the service", "read the service", "read a file", "change the folder", "follow a link", "signal by a pipe"):
        (answer,) = await grade(REFUSED[deed])
        assert answer.status == INVALID


async def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came"
        await asyncio.sleep(0.02)


PARENT = """
import asyncio
from gradbus_reward.graders import functions
from gradbus_reward.sandbox.process import PYTHON, GraderProcess
async def main():
    grader = await GraderProcess.start({"grader": "def grade(s, i):\\n    while True: pass"}, allow_network=False)
    print("pid", grader.pid, flush=True)
    await grader.grade([("", "stop", "{}")], 600.0, print)
asyncio.run(main())
"""


async def test_children_die_with_their_parent():
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    said = await anext(line async for line in parent.stdout if line.startswith(b"pid"))
    child = psutil.Process(int(said.split()[1]))
    parent.kill()
    await parent.wait()
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_every_refused_call_has_numbers_of_its_own():
    for column in (0, 1):
        numbers = [pair[column] for pair in seccomp._REFUSED.values() if pair[column] is not None]
        assert len(numbers) == len(set(numbers))
