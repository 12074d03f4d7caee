"""Confines a grader's process before it loads any user's code.

Layers of Linux, none of which needs privileges: a seccomp filter (no sockets, no processes, no signals to others, no change to
a file or folder, no call that is newer than its list), Landlock (no files but the standard library) and, where the kernel allows
it, namespaces without a network and with a root folder that holds nothing else. Standard library only, because the child runs a
bare interpreter.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gradbus.sandbox.landlock import READ, restrict_files
from gradbus.sandbox.new_root import enter_new_root, map_ids
from gradbus.sandbox.privileges import be_first_out_of_memory, die_with_parent, drop_capabilities, system_library
from gradbus.sandbox.seccomp import filter_calls

MEMORY_BYTES = 512 << 20
CPU_SECONDS = 3600
OPEN_FILES = 64
TASKS = 64
SIGNALS = 64
"""Signals and timers that wait."""

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWNS, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000, 0x8000000

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


def confine(readable: Sequence[str] = (), memory_bytes: int = MEMORY_BYTES) -> Confinement:
    """Confines this process for the rest of its life. Call it while the process has one thread.

    `readable`: folders that it may read beside the standard library and the system's libraries. `memory_bytes`: of address space.
    """
    _set_limits(memory_bytes)
    if not sys.platform.startswith("linux"):
        return Confinement(seccomp=False, namespace=False, landlock=False)
    be_first_out_of_memory()
    libc = system_library()
    user, group = os.geteuid(), os.getegid()
    own_root = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWNS) == 0
    namespace = own_root or libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0
    own_root = own_root and _enter_root(libc, user, group, readable)
    drop_capabilities(libc)
    # After the namespace: the kernel forgets it when a process changes its credentials.
    die_with_parent(libc)
    landlock = _restrict_files(libc, readable)
    return Confinement(seccomp=filter_calls(libc), namespace=namespace, landlock=landlock, root=own_root)


def _set_limits(memory_bytes: int) -> None:
    for kind, value in [
        (resource.RLIMIT_AS, memory_bytes),
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


def _enter_root(libc: ctypes.CDLL, user: int, group: int, readable: Sequence[str]) -> bool:
    try:
        map_ids("self", [(user, group)])
    except OSError:
        return False
    return enter_new_root(libc, (*_READABLE_FOLDERS, *_READABLE_FILES, *readable))


def _restrict_files(libc: ctypes.CDLL, readable: Sequence[str]) -> bool:
    """Allows to read the standard library, system libraries and `readable`, and nothing else."""
    return restrict_files(libc, {**dict.fromkeys((*_READABLE_FOLDERS, *readable), READ), **dict.fromkeys(_READABLE_FILES, READ)})
