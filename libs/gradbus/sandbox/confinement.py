"""Confines a grader's process before it loads any user's code.

Layers of Linux, none of which needs privileges: a seccomp filter (no sockets, no processes, no signals to others, no change to
a file or folder, no call that is newer than its list), Landlock (no files but the standard library) and, where the kernel allows
it, namespaces without a network and with a root folder that holds nothing else. Standard library only, because the child runs a
bare interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
from dataclasses import dataclass

from gradbus.sandbox.new_root import enter_new_root
from gradbus.sandbox.seccomp import filter_calls

MEMORY_BYTES = 512 << 20
CPU_SECONDS = 3600
OPEN_FILES = 64
TASKS = 64
SIGNALS = 64
"""Signals and timers that wait."""

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWNS, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000, 0x8000000
_CAPABILITY_VERSION_3 = 0x20080522

# Landlock: the file rights of its first version, and the two that reading needs.
_ALL_FILE_RIGHTS, _READ_FILE, _READ_DIR = 0x1FFF, 0x4, 0x8
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_RULE_PATH_BENEATH = 1
_READABLE_FOLDERS = (os.path.dirname(os.__file__), "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")
_READABLE_FILES = ("/dev/null", "/dev/urandom")


@dataclass(frozen=True)
class Confinement:
    """The layers that are in force."""

    seccomp: bool
    namespace: bool
    landlock: bool
    root: bool = False
    """Whether it has a root folder of its own."""

    @property
    def without_network(self) -> bool:
        """Whether the process cannot reach any network."""
        return self.seccomp or self.namespace


def confine() -> Confinement:
    """Confines this process for the rest of its life. Call it while the process has one thread."""
    _set_limits()
    if not sys.platform.startswith("linux"):
        return Confinement(seccomp=False, namespace=False, landlock=False)
    _be_first_out_of_memory()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
    libc.syscall.restype = ctypes.c_long
    user, group = os.geteuid(), os.getegid()
    own_root = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWNS) == 0
    namespace = own_root or libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0
    own_root = own_root and enter_new_root(libc, (*_READABLE_FOLDERS, *_READABLE_FILES), user, group)
    _drop_capabilities(libc)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # After the namespace: the kernel clears it when a process changes its credentials.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    landlock = _restrict_files(libc)
    return Confinement(seccomp=filter_calls(libc), namespace=namespace, landlock=landlock, root=own_root)


def _set_limits() -> None:
    for kind, value in [
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, TASKS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, SIGNALS),
        (resource.RLIMIT_NICE, 0),
    ]:
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _be_first_out_of_memory() -> None:
    """If the machine's memory ends, the kernel kills graders before anything else."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack("=II", _CAPABILITY_VERSION_3, 0)
    libc.capset(header, bytes(24))


def _restrict_files(libc: ctypes.CDLL) -> bool:
    """Allows to read the standard library and system libraries, and nothing else (Linux 5.13)."""
    attributes = struct.pack("=Q", _ALL_FILE_RIGHTS)
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    for paths, rights in ((_READABLE_FOLDERS, _READ_FILE | _READ_DIR), (_READABLE_FILES, _READ_FILE)):
        for path in filter(os.path.exists, paths):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, handle), 0)
            os.close(handle)
    restricted: int = libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return restricted == 0
