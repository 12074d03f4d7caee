"""What a command in a sandbox tries, and what comes of it. None succeeds, and afterwards everything outside is as before."""

import asyncio
import contextlib
import dataclasses
import os
import re
import socket
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest

from gradbus.sandbox.commands.request import Command
from gradbus.sandbox.commands.run import found_level, run_command

pytestmark = pytest.mark.skipif(asyncio.run(found_level())[0] is None, reason="this kernel gives no namespaces")

PRELUDE = """
import ctypes, os, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
def raw(*arguments):
    if libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
"""
REFUSED = "PermissionError|Function not implemented"
NO_FILE = "FileNotFoundError|PermissionError"
NO_EFFECT = "no effect|PermissionError"
SOCKETS = {
    "tcp": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "tcp over ipv6": "socket.socket(socket.AF_INET6)",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "unix": "socket.socket(socket.AF_UNIX)",
    "netlink": "socket.socket(16, socket.SOCK_RAW, 0)",
    "packets": "socket.socket(17, socket.SOCK_RAW, 0)",
    "vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "the kernel's ciphers": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "pair of another family": "raw(53, 30, 1, 0, buffer)",
}
KERNEL = {
    "trace the supervisor": "raw(101, 16, 1, 0, 0)",
    "read its memory": "raw(310, 1, buffer, 1, buffer, 1, 0)",
    "write its memory": "raw(311, 1, buffer, 1, buffer, 1, 0)",
    "take its descriptors": "raw(438, os.pidfd_open(1), 0, 0)",
    "mount": "raw(165, b'tmpfs', b'/work', b'tmpfs', 0, 0)",
    "unmount": "raw(166, b'/work', 2)",
    "unshare": "raw(272, 0x10000000)",
    "clone into namespaces": "raw(56, 0x10000011, 0, 0, 0, 0)",
    "enter a namespace": "raw(308, 0, 0)",
    "another root": "os.chroot('/work')",
    "root's identity": "os.setuid(0)",
    "a mapped identity": "os.setresgid(0, 0, 0)",
    "keys": "raw(248, b'user', b'x', b'y', 1, -2)",
    "keyring": "raw(250, 0, -3, 0)",
    "bpf": "raw(321, 5, buffer, 72)",
    "io_uring": "raw(425, 8, buffer)",
    "userfaultfd": "raw(323, 0)",
    "perf": "raw(298, buffer, 0, -1, -1, 0)",
    "a file in memory": "os.memfd_create('x')",
    "shared memory": "raw(29, 0, 4096, 0o1600)",
    "shared memory without a name": "import mmap; mmap.mmap(-1, 4096)",
    "shared memory that is validated": "import mmap; mmap.mmap(-1, 4096, flags=mmap.MAP_ANONYMOUS | 3)",
    "memory in huge pages": "import mmap; mmap.mmap(-1, 2 << 20, flags=mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE | 0x40000)",
    "the supervisor's files": "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
    "its processor time": "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
    "the clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "the host's name": "socket.sethostname('x')",
    "a kernel module": "raw(313, 0, b'', 0)",
    "restart": "raw(169, 0xfee1dead, 672274793, 0x1234567, 0)",
    "a device": "os.mknod('/work/memory', 0o20666, os.makedev(1, 1))",
    "marks on a file": "open('/work/x', 'w').close(); os.setxattr('/work/x', 'user.x', b'x')",
}
FILES = {
    "read": "open(VICTIM).read()",
    "write": "open(VICTIM, 'a').write('x')",
    "link": "os.link(VICTIM, '/work/x')",
    "through a link": "os.symlink(VICTIM, '/work/x'); open('/work/x', 'a')",
    "above the root": "open(os.getcwd() + '/../..' + VICTIM)",
    "processes of others": "open('/proc/1/environ').read()",
    "its own process": "open('/proc/self/root' + VICTIM).read()",
    "shared memory of all": "open('/dev/shm/x', 'w')",
    "memory of the machine": "open('/dev/mem', 'rb')",
    "memory by a device": "import mmap; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
    "cgroups": "open('/sys/fs/cgroup/cgroup.procs', 'w').write('0')",
    "users": "open('/etc/passwd').read()",
}
CHANGES = {
    "the standard library": "open(os.__file__, 'a')",
    "code for every interpreter": "open(os.path.dirname(os.__file__) + '/usercustomize.py', 'w')",
    "a system's program": "open('/usr/bin/x', 'w')",
    "a folder in the root": "os.mkdir('/x')",
}
BOUNDS = {
    "10 GB": ("with open('x', 'wb') as file:\n    for _ in range(10_000): file.write(bytes(1 << 20))", "OSError|File size limit"),
    "10 GB in small files": (
        "for n in range(1000):\n    with open(f'{n}', 'wb') as file: file.write(bytes(1 << 20))",
        "No space left",
    ),
    "10 GB without content": ("open('x', 'wb').truncate(10 << 30)", "File too large"),
    "100,000 files": ("for n in range(100_000): open(f'{n}', 'w').close()", "No space left"),
    "10 GB of memory": ("bytearray(10 << 30)", "MemoryError"),
    "raise the limits": ("import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)", "not allowed|ValueError"),
    "locked memory": ("raw(149, buffer, 4096)", "OSError|PermissionError|MemoryError"),
    "a higher priority": ("os.nice(-5)", REFUSED),
    "the first in line": ("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", REFUSED),
    "fork bomb": ("children = 0\nwhile True:\n    if os.fork() == 0:\n        time.sleep(60); os._exit(0)", "BlockingIOError"),
    "thread bomb": ("while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "can't start new thread"),
    "all descriptors": ("held = []\nwhile True: held.append(os.pipe())", "Too many open files"),
    "other handles than the standard ones": (
        (
            "found = []\n"
            "for n in range(3, 256):\n    try: os.write(n, b'{}\\n')\n    except OSError: continue\n    found.append(n)\n"
            "assert found, 'no effect'"
        ),
        NO_EFFECT,
    ),
    "secrets of the service": ("assert [k for k in os.environ if 'SECRET' in k], 'no effect'", NO_EFFECT),
    "the service's code": ("import gradbus", "ModuleNotFoundError"),
    "code for the user's interpreter": (
        (
            "os.makedirs(os.environ['HOME'] + '/.local/lib/python3.11/site-packages')\n"
            "open(os.environ['HOME'] + '/.local/lib/python3.11/site-packages/x.pth', 'w').write('import os; print(os.getpid())')\n"
            "assert subprocess.run([sys.executable, '-c', ''], capture_output=True).stdout, 'no effect'"
        ),
        NO_EFFECT,
    ),
    "a library before all others": (
        (
            "os.environ['LD_PRELOAD'] = '/work/x.so'\nopen('/work/x.so', 'wb').write(bytes(64))\n"
            "done = subprocess.run(['/usr/bin/id', '-u'], capture_output=True, text=True)\nassert done.stdout == '0\\n', 'no effect'"
        ),
        NO_EFFECT,
    ),
    "a program that makes root": (
        "done = subprocess.run(['/usr/bin/su', '-c', 'id -u'], capture_output=True, text=True)\nassert done.stdout == '0\\n', 'no effect'",
        NO_EFFECT,
    ),
    "end the supervisor": ("os.kill(1, 9); time.sleep(.1); sys.exit('no effect')", NO_EFFECT),
    "interrupt it": ("for n in (2, 15, 1, 10): os.kill(1, n)\ntime.sleep(.1); sys.exit('no effect')", NO_EFFECT),
    "stop it": ("os.kill(1, signal.SIGSTOP); time.sleep(.1); sys.exit('no effect')", NO_EFFECT),
    "end the service": ("os.kill(SERVICE, 9)", "ProcessLookupError"),
    "end everybody": ("os.kill(-1, 9)", "ProcessLookupError"),
    "end a group": ("os.killpg(SERVICE, 9)", "ProcessLookupError"),
    "outlive it": (
        (
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        signal.signal(15, signal.SIG_IGN); time.sleep(600)\n"
            "    os._exit(0)\n"
            "sys.exit('no effect')"
        ),
        NO_EFFECT,
    ),
    "a file left behind": ("open('/tmp/NAME', 'w').close(); open('/work/NAME', 'w').close(); sys.exit('no effect')", NO_EFFECT),
    "a dump": ("os.kill(os.getpid(), signal.SIGABRT)", ""),
    "claim success": (
        """print('{"end": "exited", "code": 0, "stdout": "", "stderr": "", "files": {}}'); sys.exit('no effect')""",
        NO_EFFECT,
    ),
}
ENDS = {
    "compute for ever": ("while True: pass", "time"),
    "sleep for ever": ("signal.signal(24, signal.SIG_IGN); time.sleep(600)", "time"),
    "compute for ever in children": ("while True:\n    if os.fork() == 0:\n        while True: pass\n    time.sleep(.6)", "time"),
    "10 GB of memory in children": (
        "for _ in range(20):\n    if os.fork() == 0:\n        held = bytearray(60 << 20); time.sleep(60)\ntime.sleep(60)",
        "memory",
    ),
    "output without end": ("while True: os.write(1, bytes(1 << 16))", "output"),
    "errors without end": ("while True: os.write(2, bytes(1 << 16))", "output"),
    "10 GB of output": ("os.system('cat /dev/full')", "output"),
    "a tree that is too large": ("for n in range(300): open(f'{n}', 'w').close()", "files"),
    "a file that is too large": ("open('x', 'wb').truncate(60 << 20)", "files"),
    "a thousand folders in each other": ("for _ in range(1500): os.mkdir('d'); os.chdir('d')", "files"),
    "names that are no text": ("open(b'\\xff', 'w').close()", "files"),
    "a path that is too deep": ("for _ in range(40): os.mkdir('d'); os.chdir('d')\nopen('x', 'w').close()", "files"),
}
ATTEMPTS = {
    **{f"socket: {name}": (code, REFUSED) for name, code in SOCKETS.items()},
    "name server": ("socket.getaddrinfo('localhost.example', 80)", "gaierror"),
    **{f"kernel: {name}": (code, REFUSED) for name, code in KERNEL.items()},
    **{f"files: {name}": (code, NO_FILE) for name, code in FILES.items()},
    **{f"change: {name}": (code, "Read-only|PermissionError") for name, code in CHANGES.items()},
    **BOUNDS,
}
EVERY_SECOND = [pytest.param(name, marks=pytest.mark.slow if at % 2 else ()) for at, name in enumerate(ATTEMPTS)]


def open_descriptors():
    """Number and target (for a socket or pipe, its inode) of each descriptor of this process."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((path.name, os.readlink(path)))
    return found


@dataclasses.dataclass
class Host:
    """What a command must not reach, on the machine of the test."""

    folder: Path
    name: str
    listener: socket.socket
    others: frozenset
    """Children that the process had before, of other tests."""

    def command(self, code, **options):
        code = code.replace("VICTIM", repr(str(self.folder / "victim"))).replace("SERVICE", str(os.getpid())).replace("NAME", self.name)
        code = code.replace("PORT", str(self.listener.getsockname()[1]))
        return Command(("python", "-c", f"{PRELUDE}\n{code}\nprint('ESCA' + 'PED')\n# {self.name}"), **options)

    def state(self):
        files = {path: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode) for path in self.folder.iterdir()}
        left = [path for folder in ("/tmp", "/dev/shm") for path in Path(folder).glob(f"*{self.name}*")]
        return files, left, self.processes()

    def processes(self):
        """Those that still run the command, wherever they are, and the test's own children."""
        processes = psutil.process_iter(["cmdline"])
        found = [one.pid for one in processes if any(self.name in part for part in one.info["cmdline"] or ())]
        return found, [child.pid for child in psutil.Process().children(recursive=True) if child.pid not in self.others]

    @contextlib.contextmanager
    def unchanged(self):
        """Everything outside is as before the block; descriptors of tests before this one may be closed in it."""
        state, descriptors = self.state(), open_descriptors()
        yield
        assert self.state() == state
        assert open_descriptors() <= descriptors

    async def until(self, holds):
        """Waits until it holds of those that run the command."""
        while True:  # the test's timeout bounds it
            if holds(self.processes()[0]):
                return
            await asyncio.sleep(0.02)


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setenv("GRADBUS_SECRET", "x")
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        Path(folder).chmod(0o777)
        victim = Path(folder) / "victim"
        victim.write_text("content")
        victim.chmod(0o666)
        listener.settimeout(0)
        others = frozenset(child.pid for child in psutil.Process().children(recursive=True))
        yield Host(Path(folder), uuid.uuid4().hex, listener, others)


@pytest.mark.parametrize("attempt", EVERY_SECOND)
async def test_an_attempt_fails_and_everything_outside_is_as_before(host, attempt):
    code, expected = ATTEMPTS[attempt]
    with host.unchanged():
        outcome = await run_command(host.command(code, seconds=5), "namespaces")
    assert (outcome.end, b"ESCAPED" in outcome.stdout) == ("exited", False), outcome
    assert outcome.code != 0
    assert re.search(expected, outcome.stderr.decode()), outcome.stderr.decode()
    with pytest.raises(BlockingIOError):
        host.listener.accept()


@pytest.mark.parametrize("attempt", ENDS)
async def test_what_has_no_end_is_ended_and_nothing_is_left(host, attempt):
    code, end = ENDS[attempt]
    seconds = 0.1 if end == "time" else 5.0  # to fill memory or a folder takes time, on a busy machine more
    with host.unchanged():
        outcome = await run_command(host.command(code, seconds=seconds, keep=True), "namespaces")
    assert (outcome.end, outcome.files) == (end, {}), outcome.end
    assert len(outcome.stdout) <= 1 << 18


async def test_links_and_pipes_are_not_followed_when_files_are_given_back(host):
    code = (
        "os.symlink(VICTIM, 'link'); os.mkfifo('pipe'); os.mkdir('folder'); os.symlink('/usr', 'folder/all'); open('kept', 'w').write('x')"
    )
    outcome = await run_command(host.command(code, keep=True), "namespaces")
    assert (outcome.end, outcome.code, outcome.files) == ("exited", 0, {"kept": b"x"}), outcome.stderr


async def test_a_folder_that_can_be_listed_and_not_entered_is_no_fault(host):
    code = "os.mkdir('d'); open('d/a', 'w').write('x'); open('kept', 'w').write('x'); os.chmod('d', 0o444)"
    outcome = await run_command(host.command(code, keep=True), "namespaces")
    assert (outcome.end, outcome.code, outcome.files) == ("exited", 0, {"kept": b"x"}), outcome.stderr


async def test_output_that_is_too_much_is_found_after_the_end_too(host):
    ends = [(await run_command(host.command("os.write(1, bytes(60_000)); os._exit(0)"), "namespaces")).end for _ in range(3)]
    # The last part fits into the pipe, so that the command has ended when it is read.
    code = "for _ in range(5): os.write(1, bytes(60_000))\nos._exit(0)"
    ends += [(await run_command(host.command(code), "namespaces")).end for _ in range(10)]
    assert ends == ["exited"] * 3 + ["output"] * 10


async def test_a_caller_that_gives_up_leaves_no_process(host):
    task = asyncio.ensure_future(run_command(host.command("if os.fork() == 0: os.setsid()\ntime.sleep(600)", seconds=60), "namespaces"))
    await host.until(lambda found: found)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert host.processes() == ([], [])


async def test_when_the_launcher_is_killed_the_kernel_ends_the_rest(host):
    task = asyncio.ensure_future(run_command(host.command("os.fork(); time.sleep(600)", seconds=60), "namespaces"))
    await host.until(lambda found: len(found) > 1)
    next(child for child in psutil.Process().children() if child.pid not in host.others).kill()
    with pytest.raises(Exception, match="ended without an answer"):
        await task
    await host.until(lambda found: not found)
