"""System calls that a user's Python makes directly, and each layer of the confinement by itself."""

import os
import platform
from dataclasses import replace

import pytest

from gradbus.sandbox import seccomp
from gradbus.sandbox.process import ProcessStoppedError
from gradbus.v1 import reward_pb2
from gradbus_reward.graders import functions
from gradbus_reward.sandbox.process import PYTHON, GraderProcess

INVALID = reward_pb2.REWARD_STATUS_INVALID
EPERM, EROFS, ENOSYS = 1, 30, 38
x86_64_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")

RAW = """
import ctypes
buffer = ctypes.create_string_buffer(4096)
CALLS = [TABLE]
def grade(s, i):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in CALLS[i['n']]))
    return {'reward': result, 'errno': ctypes.get_errno()}
"""
CALLS = {
    "tcp": "41, 2, 1, 0",
    "netlink": "41, 16, 3, 0",
    "abstract sockets": "53, 1, 1, 0, buffer",
    "clone": "56, 17, 0, 0, 0, 0",
    "clone into namespaces": "56, 0x7c020011, 0, 0, 0, 0",
    "clone3": "435, buffer, 88",
    "vfork": "58,",
    "execve": "59, b'/bin/true', 0, 0",
    "execveat": "322, -100, b'/bin/true', 0, 0, 0",
    "memfd_create": "319, b'x', 0",
    "be traced": "101, 0, 0, 0, 0",
    "trace the service": "101, 16, PARENT, 0, 0",
    "read its memory": "310, PARENT, buffer, 1, buffer, 1, 0",
    "write its memory": "311, PARENT, buffer, 1, buffer, 1, 0",
    "signal it": "62, PARENT, 0",
    "signal its thread": "234, PARENT, PARENT, 0",
    "queue a signal": "129, PARENT, 0, buffer",
    "hold it by a descriptor": "434, PARENT, 0",
    "take its descriptors": "438, 3, 0, 0",
    "compare with it": "312, PARENT, PARENT, 0, 0, 0",
    "its limits": "302, PARENT, 7, 0, buffer",
    "bind it to a core": "203, PARENT, 128, buffer",
    "see its cores": "204, PARENT, 128, buffer",
    "see its scheduling": "145, PARENT",
    "see its group": "121, PARENT",
    "see its session": "124, PARENT",
    "see its priority": "140, 0, PARENT",
    "see its capabilities": "125, buffer, buffer",
    "its priority": "141, 0, PARENT, 10",
    "unshare": "272, 0x10000000",
    "setns": "308, 3, 0",
    "mount": "165, b'tmpfs', b'/', b'tmpfs', 0, 0",
    "mount by a descriptor": "429, -100, b'/', -100, b'/', 0",
    "open a tree": "428, -100, b'/', 0",
    "see the mounts": "457, buffer, buffer, 4096, 0",
    "a handle": "303, -100, b'/', buffer, buffer, 0",
    "open by a handle": "304, -100, buffer, 0",
    "io_uring": "425, 8, buffer",
    "asynchronous reads": "206, 8, buffer",
    "bpf": "321, 5, buffer, 72",
    "userfaultfd": "323, 0",
    "perf": "298, buffer, 0, -1, -1, 0",
    "a key": "248, b'user', b'x', b'y', 1, -2",
    "the keyring": "250, 0, -3, 0",
    "shared memory": "29, 0, 4096, 0o1600",
    "semaphores": "64, 0, 1, 0o1600",
    "messages": "68, 0, 0o1600",
    "a named queue": "240, b'x', 0o102, 0o600, 0",
    "prctl": "157, 4, 1, 0, 0, 0",
    "a second filter": "317, 1, 0, buffer",
    "rules without end": "444, buffer, 8, 0",
    "shared memory of others": "30, 0, 0, 0",
    "personality": "135, 0x0400000",
    "watch a folder": "254, 0, b'/usr', 0xfff",
    "watches": "294, 0",
    "look for a file": "21, b'/', 0",
    "look from a folder": "439, -100, b'/', 0, 0",
    "signal by a pipe": "72, 0, 8, 1",
    "the same, with bits that the kernel ignores": "72, 0, 15 | 1 << 32, 0",
    "change the root": "155, b'.', b'.'",
    "flush a file system": "306, 0",
    "flush the disk": "74, 3",
    "flush its data": "75, 3",
    "flush a mapping": "26, buffer, 4096, 4",
    "interrupt all cores": "324, 1, 0, 0",
    "size of the disk": "138, 3, buffer",
    "list of modules": "461, buffer, buffer, 0",
    "open to write": "2, b'/dev/null', 1, 0",
    "open to create": "257, -100, b'/x', 0o100, 0o600",
    "open to empty": "257, -100, b'/dev/null', 0o1000, 0",
    "a file without a name": "257, -100, b'/', 0o20200001, 0o600",
    "open by a structure": "437, -100, b'/dev/null', buffer, 24",
    "attributes of a file": "469, -100, b'/', buffer, 24, 0",
}
UNKNOWN = {"newer than the list": "470, 0, 0, 0", "far beyond": "100000, 0", "the other interface of the machine": "0x40000029, 2, 1, 0"}


@x86_64_only
@pytest.mark.parametrize(("calls", "errno"), [(CALLS, EPERM), (UNKNOWN, ENOSYS)], ids=["others", "unknown"])
async def test_raw_calls_that_reach_or_see_others_and_those_the_list_does_not_know_are_refused(grade, calls, errno):
    table = ", ".join(f"({arguments})" for arguments in calls.values()).replace("PARENT", str(os.getpid()))
    answers = await grade(RAW.replace("TABLE", table), *calls)
    found = {deed: (answer.reward, answer.components.get("errno"), answer.reason) for deed, answer in zip(calls, answers, strict=True)}
    assert found == dict.fromkeys(calls, (-1.0, errno, ""))


def boots_without(monkeypatch, *changes):
    """As on a kernel that lacks layers."""
    lines = "; ".join(f"c.{change}" for change in changes)
    imports = "import gradbus.sandbox.confinement as c; from gradbus_reward.sandbox import child"
    boot = f"import sys; sys.path[:0] = sys.argv[1:3]; {imports}; {lines}; child.main()"
    monkeypatch.setattr(functions, "PYTHON", replace(PYTHON, boot=boot))


CHANGES = {
    "write": "open(victim, 'a')",
    "empty": "os.close(os.open(victim, os.O_RDONLY | os.O_TRUNC))",
    "remove": "os.unlink(victim)",
    "rename": "os.rename(victim, victim + '.x')",
    "link": "os.link(victim, victim + '.x')",
    "symbolic link": "os.symlink('/', victim + '.x')",
    "folder": "os.mkdir(victim + '.x')",
    "pipe": "os.mkfifo(victim + '.x')",
    "create": "os.open(victim + '.x', os.O_CREAT, 0o600)",
    "nameless": "os.open(os.path.dirname(victim), os.O_TMPFILE | os.O_WRONLY, 0o600)",
}


async def test_the_filter_alone_keeps_files_as_they_are(grade, tmp_path, monkeypatch):
    boots_without(monkeypatch, "_CLONE_NEWUSER = 1 << 20", "_restrict_files = lambda *_: False")
    victim = tmp_path / "blob"
    victim.write_text("content")
    deeds = ", ".join(f"lambda: {deed}" for deed in CHANGES.values())
    answers = await grade(f"import os\nvictim = {str(victim)!r}\ndeeds = [{deeds}]\ndef grade(s, i):\n    deeds[i['n']]()", *CHANGES)
    assert [deed for deed, answer in zip(CHANGES, answers, strict=True) if "PermissionError" not in answer.reason] == []
    assert {answer.status for answer in answers} == {INVALID}
    assert (victim.read_text(), list(tmp_path.iterdir())) == ("content", [victim])


async def test_the_root_alone_keeps_the_library_as_it_is(grade, monkeypatch):
    boots_without(monkeypatch, "_restrict_files = lambda *_: False", "filter_calls = lambda libc: False")
    source = """
import os
def grade(s, i):
    try:
        os.chmod(os.__file__, os.stat(os.__file__).st_mode)
    except OSError as error:
        return error.errno
"""
    (answer,) = await grade(source)
    assert answer.reward == EROFS


HUNDRED = ", ".join(f'"{n}": 1.0' for n in range(100))


@pytest.mark.parametrize(
    "result",
    [
        f'{{"grader": [1.0, {{{HUNDRED}}}]}}',
        '{"grader": [1.0, {"' + "x" * 5000 + '": 1.0}]}',
        '{"grader": [1.0, {"x": [[[]]]}]}',
        '{"grader": [[], {}]}',
        '{"grader": "' + "x" * 5000 + '"}',
        '{"grader": "", "another": ""}',
        '{"grader": {}}',
    ],
)
async def test_a_result_larger_than_the_child_sends_is_not_kept(result):
    source = (
        f"import os\ndef grade(s, i):\n    for n in (3, 4, 5):\n        try: os.write(n, {f'[0, [{result}]]'.encode()!r} + bytes([10]))\n"
    )
    grader = await GraderProcess.start({"grader": source + "        except OSError: pass\n"}, allow_network=False)
    kept = []
    with pytest.raises(ProcessStoppedError, match="broke its protocol"):
        await grader.grade([("", "stop", "{}")], 60.0, kept.append)
    assert kept == []
    await grader.stop()


def test_the_filter_fits_into_the_jumps_of_its_program():
    for column, arch in enumerate(seccomp._AUDIT_ARCH.values()):
        program = seccomp._program(arch, column)
        for at, (code, if_true, if_false, operand) in enumerate(program):
            jump = operand if code == seccomp._JUMP else max(if_true, if_false)
            assert code == seccomp._RETURN or at + 1 + jump < len(program)
            assert max(if_true, if_false) < 256
