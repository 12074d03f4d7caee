"""What a command gives up before it is executed, inside its namespaces. Standard library only."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradbus.sandbox.commands.request import Command
from gradbus.sandbox.landlock import EXECUTE, READ, WRITE, restrict_files
from gradbus.sandbox.privileges import drop_capabilities
from gradbus.sandbox.seccomp import filter_calls

FOLDER, TEMPORARY = "/work", "/tmp"  # noqa: S108 - an empty file system in memory, of one command
DISK_MIB = 64
"""Of each of the two folders."""
DISK_FILES = 8192
"""In each of them, with their folders: more than a request can have."""
PROCESSES = 32
"""At once, with their threads."""
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", sys.base_prefix)
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Without `/dev/zero`: memory that is shared by it counts as nobody's. `/dev/full` has zeros to read too."""
INTERPRETER = os.path.realpath(sys.executable)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": FOLDER,
    "TMPDIR": TEMPORARY,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "MALLOC_ARENA_MAX": "2",
}
_OPEN_FILES = 256
_SIGNALS = 256
_ADDRESS_SPACE_MIB = 64
"""Beyond the command's memory: for the interpreter's own pages."""
_ADDR_NO_RANDOMIZE = 0x0040000
_ALLOWED = frozenset(
    {
        "clone", "clone3", "socketpair", "fork", "vfork", "execve", "execveat", "kill", "tkill", "tgkill", "rt_sigqueueinfo",
        "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal", "prlimit64", "setpriority", "getpriority", "setsid", "setpgid",
        "getpgid", "getsid", "sched_setaffinity", "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_getattr",
        "sched_rr_get_interval", "ioprio_get", "get_robust_list", "capget", "creat", "openat2", "mkdir", "mkdirat", "rmdir", "unlink",
        "unlinkat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "truncate",
        "ftruncate", "fallocate", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "utime",
        "utimes", "futimesat", "utimensat", "flock", "fsync", "fdatasync", "sync_file_range", "msync", "chdir", "fchdir", "access",
        "faccessat", "faccessat2", "readlink", "readlinkat", "statfs", "fstatfs", "ioctl",
    }
)  # fmt: skip
"""Of the calls that a grader is refused: on processes of its own PID namespace, and on files of its own root folder."""
_NETWORK = frozenset({"socket", "connect"})
"""What a command may that has a network."""


@dataclass(frozen=True)
class Access:
    """What a command has beside the system's programs."""

    paths: tuple[str, ...] = ()
    """It may read and execute these."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of every command."""
    port: int | None = None
    """It may connect to this port by IPv4, in its own network."""


_NO_ACCESS = Access()


def execute(
    libc: ctypes.CDLL, command: Command, standard: tuple[int, int, int], access: Access = _NO_ACCESS, *, bound_addresses: bool = True
) -> None:
    """Makes this process the command; `standard` are its three streams. `bound_addresses`: its memory bounds its address space too, of
    which some interpreters reserve more than they use.

    Does not return.
    """
    code = 126
    try:
        os.setsid()
        for number, handle in enumerate(standard):
            os.dup2(handle, number)
        os.chdir(FOLDER)
        os.umask(0o022)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # Python has its own way with these
            signal.signal(number, signal.SIG_DFL)
        _set_limits(command)
        if bound_addresses:
            _set_limit(resource.RLIMIT_AS, (command.memory_mib + _ADDRESS_SPACE_MIB) << 20)
        drop_capabilities(libc)
        libc.personality(_ADDR_NO_RANDOMIZE)  # what shows the address of an object is the same each time
        files = {**_file_rights(), **dict.fromkeys(access.paths, READ | EXECUTE)}
        if not restrict_files(libc, files, access.port) and os.path.exists("/proc/self"):
            raise OSError("no Landlock on this kernel, without which /proc shows the memory of other processes; allow user namespaces")
        if not filter_calls(libc, _ALLOWED if access.port is None else _ALLOWED | _NETWORK):
            raise OSError("no filter of system calls")
        code = 127
        name, *others = command.arguments
        program = INTERPRETER if name in {"python", "python3"} else name
        os.execvpe(program, [program, *others], {**ENVIRONMENT, **access.environment})  # noqa: S606 - the command itself
    except OSError as error:
        os.write(2, f"{command.arguments[0][:200]}: {error.strerror or error}\n".encode())
    finally:
        os._exit(code)


def _file_rights() -> dict[str, int]:
    return {
        **dict.fromkeys(SYSTEM_FOLDERS, READ | EXECUTE),
        **dict.fromkeys(DEVICES, WRITE),
        **dict.fromkeys((FOLDER, TEMPORARY), WRITE | EXECUTE),
    }


def _set_limits(command: Command) -> None:
    seconds = max(1, math.ceil(command.seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for kind, value in [
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, PROCESSES + 3),  # the supervisor and those that made its namespaces count too
        (resource.RLIMIT_FSIZE, DISK_MIB << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ]:
        _set_limit(kind, value)


def _set_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (limit, limit))
