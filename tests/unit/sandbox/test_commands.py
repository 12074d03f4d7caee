"""What an honest command finds, what it says, and what a request must be."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.sandbox import seccomp
from gradbus.sandbox.commands import restrictions, run
from gradbus.sandbox.commands.request import Command, CommandError, Outcome, read_command, read_outcome
from gradbus.sandbox.commands.run import (
    LEVELS,
    FoundLevel,
    NoSandboxError,
    SandboxError,
    ServedCommand,
    end_process,
    found_level,
    run_command,
    start_server,
)

namespaces = pytest.mark.skipif(asyncio.run(found_level())[0] is None, reason="this kernel gives no namespaces")


async def ran(*arguments, **options):
    return await run_command(Command(arguments, **options), "namespaces")


@namespaces
async def test_a_command_finds_its_files_its_input_and_a_bare_environment():
    code = "import os, sys; print(open('a/b').read(), sys.stdin.read(), os.getcwd(), sorted(os.listdir('.')), sorted(os.environ))"
    outcome = await ran("python", "-c", code, files={"a/b": b"content"}, stdin=b"input")
    names = sorted(restrictions.ENVIRONMENT)
    assert (outcome.end, outcome.code) == ("exited", 0), outcome.stderr
    assert outcome.stdout.decode() == f"content input /work ['a'] {names}\n"


@namespaces
async def test_files_that_it_leaves_are_given_back_and_are_gone_for_the_next_one():
    code = "import os; os.remove('old'); os.makedirs('x/y'); open('x/y/new', 'wb').write(bytes([0, 255])); os.rename('moved', 'x/moved')"
    outcome = await ran("python", "-c", code, files={"old": b"", "moved": b"m"}, keep=True)
    assert outcome.files == {"x/y/new": b"\x00\xff", "x/moved": b"m"}, outcome.stderr
    assert (await ran("python", "-c", "import os; print(os.listdir('.'))")).stdout == b"[]\n"


@namespaces
async def test_the_same_code_says_the_same_where_neither_clock_nor_random_numbers_are_asked():
    code = "print(object(), {'a', 'b', 'c', 'd'}, hash('x'), __import__('time').tzname)"
    first, second = await asyncio.gather(ran("python", "-c", code), ran("python", "-c", code))
    assert first == second
    assert first.code == 0


@namespaces
async def test_it_may_have_threads_processes_an_event_loop_and_a_shell():
    code = """
import asyncio, concurrent.futures, subprocess, threading
with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(int, '1234')))
async def shell():
    process = await asyncio.create_subprocess_exec('sh', '-c', 'echo $((6 * 7))', stdout=subprocess.PIPE)
    return (await process.communicate())[0]
print(asyncio.run(shell()))
"""
    outcome = await ran("python", "-c", code)
    assert (outcome.stdout, outcome.stderr, outcome.code) == (b"10\nb'42\\n'\n", b"", 0)


@namespaces
@pytest.mark.parametrize(
    ("arguments", "code", "stderr"),
    [
        (("python", "-c", "raise SystemExit(3)"), 3, b""),
        (("sh", "-c", "kill -9 $$"), -9, b""),
        (("no-such-program",), 127, b"no-such-program: No such file or directory\n"),
        (("/work",), 127, b"/work: Permission denied\n"),
    ],
)
async def test_the_exit_status_is_the_commands(arguments, code, stderr):
    outcome = await ran(*arguments)
    assert (outcome.end, outcome.code, outcome.stderr) == ("exited", code, stderr)


GOOD = Command(("true",)).document()


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": []},
        {"arguments": "true"},
        {"arguments": ["a\0b"]},
        {"arguments": ["x" * 100_001]},
        {"arguments": ["x"] * 257},
        {"arguments": ["x" * 100_000] * 11},
        {"files": {"/etc/passwd": ""}},
        {"files": {"../x": ""}},
        {"files": {"a//b": ""}},
        {"files": {"a/./b": ""}},
        {"files": {"a\nb": ""}},
        {"files": {"x/" * 16 + "x": ""}},
        {"files": {"x": "no base64!"}},
        {"files": {"x": "AAAA" * (1 << 19)}},
        {"files": {f"{n}": "" for n in range(257)}},
        {"files": {1: ""}},
        {"files": {"a/b": "", "a/b/c": ""}},
        {"stdin": "AAAA" * (1 << 19)},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": 601},
        {"seconds": True},
        {"memory_mib": 1},
        {"memory_mib": 1 << 20},
        {"keep": 1},
        {"another": 1},
    ],
)
def test_a_request_that_no_sandbox_takes_is_refused(change):
    with pytest.raises(CommandError):
        read_command({**GOOD, **change})


def test_requests_and_outcomes_come_back_as_they_were():
    command = Command(("a", "b"), {"x/y": b"\x00"}, b"in", 2.5, 128, True)
    outcome = Outcome("time", -9, b"\xff", b"err", {"f": b""})
    assert read_command(json.loads(json.dumps(command.document()))) == command
    assert read_outcome(json.loads(json.dumps(outcome.document()))) == outcome
    with pytest.raises(CommandError):
        read_outcome({**outcome.document(), "end": "won"})


def processes_of(launcher):
    """Ids of a launcher and of all below it, by the kernel."""
    below = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [launcher, *(one for child in below for one in processes_of(int(child)))]


def all_arguments():
    """Of every process that this machine shows."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has ended
            found.append(one.read_bytes())
    return found


LEVELS_HERE = [level for level in LEVELS if asyncio.run(found_level([level]))[0] is not None]


@pytest.mark.parametrize("level", LEVELS_HERE)
async def test_the_variables_of_a_served_command_are_no_arguments_of_any_process(level):
    secret, code = "not-for-ps", "import os, sys; print(os.environ['KEY'], flush=True); sys.stdin.read()"
    process = await start_server(ServedCommand(("python", "-c", code), (), 512, {"KEY": secret}), level)
    try:
        assert await process.stdout.readline() == f"{secret}\n".encode(), "the command has it"
        assert len(processes_of(process.pid)) >= 3, "launcher, process 1 and the command"
        assert not any(secret.encode() in one for one in all_arguments())
    finally:
        await end_process(process)


@pytest.mark.parametrize("level", LEVELS_HERE)
async def test_a_served_command_has_its_streams_and_no_other_file_and_as_many_variables_as_it_likes(level):
    code = """
import os
def is_open(n):
    try: return bool(os.fstat(n))
    except OSError: return False
print([n for n in range(100) if is_open(n)], sum(map(len, os.environ.values())) > 200_000)
"""
    served = ServedCommand(("python", "-c", code), (), 512, {"A": "x" * 100_000, "B": "y" * 100_000})
    process = await start_server(served, level)
    try:
        assert await process.stdout.readline() == b"[0, 1, 2] True\n", await process.stderr.read()
    finally:
        await end_process(process)


async def test_bubblewrap_gets_a_served_command_in_a_file_and_not_by_its_arguments(monkeypatch, tmp_path):
    bubblewrap = tmp_path / "bwrap"
    bubblewrap.write_text(f"#!{sys.executable}\nimport os, sys\nprint(sys.argv[1:], os.pread(int(sys.argv[-1]), 9999, 0), sep='\\n')\n")
    bubblewrap.chmod(0o755)
    tmp_path.chmod(0o755)
    change = f"_BUBBLEWRAP = ({str(bubblewrap)!r},); launch._ids = lambda: [(launch.os.geteuid(), launch.os.getegid())]"
    monkeypatch.setattr(run, "boot", lambda _: changed(change))
    process = await start_server(ServedCommand(("program",), ("/opt",), 512, {"KEY": "not-for-ps"}), "bubblewrap")
    said, told = await process.communicate()
    arguments, document = said.decode().splitlines()
    assert "from gradbus.sandbox.commands import server" in arguments, told
    assert ("not-for-ps" in arguments, "not-for-ps" in document) == (False, True)


@pytest.mark.parametrize("level", LEVELS_HERE)
async def test_a_served_command_whose_sandbox_is_killed_did_not_end_well(level):
    process = await start_server(ServedCommand(("python", "-c", "print(flush=True); import sys; sys.stdin.read()")), level)
    try:
        await process.stdout.readline()
        os.kill(processes_of(process.pid)[1], signal.SIGKILL)
        assert await process.wait() == 128 + signal.SIGKILL
    finally:
        await end_process(process)


def changed(change):
    """Boots the launcher with a change."""
    return f"import sys; sys.path[:0] = sys.argv[1:3]; from gradbus.sandbox.commands import launch; launch.{change}; launch.main()"


async def without(monkeypatch, change):
    """As on a kernel that lacks something."""
    monkeypatch.setattr(run, "boot", lambda _: changed(change))
    return await found_level()


async def test_a_machine_without_namespaces_and_bubblewrap_says_what_to_do(monkeypatch):
    level, reason = await without(monkeypatch, "_NAMESPACES = 1 << 40")
    assert level is None
    assert "allow user namespaces" in reason
    assert "install it (bwrap)" in reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("supervise = lambda *_: 1 / 0", "the sandbox broke: ZeroDivisionError"),
        ("supervise = lambda *_: launch.os._exit(1)", "ended without an answer: check"),
        ("supervise = lambda *_: launch.os.write(2, b'x' * 900 + b'the end') * launch.os._exit(1)", "the end; try again"),
    ],
)
@namespaces
async def test_a_sandbox_that_breaks_is_no_outcome_and_may_be_there_later(monkeypatch, change, reason):
    with pytest.raises(SandboxError, match=reason):
        await without(monkeypatch, change)
    with pytest.raises(SandboxError, match=reason):
        await run_command(Command(("true",)), "namespaces")


@namespaces
async def test_the_level_is_found_once_and_asked_for_again_until_it_is_known(monkeypatch):
    level = FoundLevel("programs")
    with monkeypatch.context() as broken:
        broken.setattr(run, "boot", lambda _: changed("supervise = lambda *_: 1 / 0"))
        with pytest.raises(SandboxError, match="the sandbox broke"):
            await level.get()
    found = await asyncio.gather(level.get(), level.get())
    assert found == [(await found_level())[0]] * 2
    monkeypatch.setattr(run, "boot", lambda _: "raise SystemExit")
    assert await level.get() == found[0]


async def test_a_machine_without_a_level_says_which_commands_are_not_confined(monkeypatch):
    monkeypatch.setattr(run, "boot", lambda _: changed("_BUBBLEWRAP = ()"))
    with pytest.raises(NoSandboxError, match=r"^programs cannot be confined here: no sandbox: bubblewrap is not installed"):
        await FoundLevel("programs", ["bubblewrap"]).get()


async def test_a_kernel_that_has_no_process_left_may_have_one_later(monkeypatch):
    with pytest.raises(SandboxError, match="no sandbox for now: Resource temporarily unavailable"):
        await without(monkeypatch, "_CLONE = dict.fromkeys(launch._CLONE, 1 << 20); launch.ctypes.get_errno = lambda: 11")


@namespaces
async def test_files_beyond_their_bound_end_a_command_whose_file_system_has_none(monkeypatch):
    monkeypatch.setattr(run, "boot", lambda _: changed("DISK_FILES = 1 << 20"))
    for folder in (restrictions.FOLDER, restrictions.TEMPORARY):
        code = f"for n in range(1_000_000): open(f'{folder}/{{n}}', 'w').close()"
        assert (await ran("python", "-c", code, seconds=30)).end == "files"


def test_without_landlock_nothing_is_executed_where_processes_can_be_seen():
    code = """
from gradbus.sandbox.commands import restrictions
from gradbus.sandbox.commands.request import Command
from gradbus.sandbox.privileges import system_library
restrictions.restrict_files, restrictions.FOLDER = (lambda *_: False), "/"
restrictions.execute(system_library(), Command(("true",)), (0, 1, 2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "no Landlock" in done.stderr) == (126, True), done.stderr


def test_the_filters_program_fits_into_its_jumps_here_too():
    for column, arch in enumerate(seccomp._AUDIT_ARCH.values()):
        program = seccomp._program(arch, column, restrictions._ALLOWED)
        for at, (code, if_true, if_false, operand) in enumerate(program):
            jump = operand if code == seccomp._JUMP else max(if_true, if_false)
            assert code == seccomp._RETURN or at + 1 + jump < len(program)
            assert max(if_true, if_false) < 256


def test_every_call_that_is_allowed_again_is_one_that_a_grader_is_refused():
    assert restrictions._ALLOWED - seccomp._REFUSED.keys() == set()
