"""The processes of a sandbox as its process 1 sees them: how much they have together, and their end. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

from gradbus.sandbox.commands.restrictions import DISK_FILES, FOLDER, TEMPORARY

_FSOPEN, _FSCONFIG, _FSMOUNT, _CONFIG_CREATE, _CLOEXEC = 430, 431, 432, 6, 1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_OWN = 1
_STATUS_BYTES = 4096
_OF_A_SIGNAL = 128


def detached_proc(libc: ctypes.CDLL) -> int | None:
    """A handle of a proc file system of this PID namespace that is mounted nowhere, so that no command finds it; None where the kernel
    refuses it. Call it while the old root, which has such a file system, is still there."""
    context = libc.syscall(_FSOPEN, b"proc", _CLOEXEC)
    if context < 0:
        return None
    created = libc.syscall(_FSCONFIG, context, _CONFIG_CREATE, None, None, 0)
    mounted = int(libc.syscall(_FSMOUNT, context, _CLOEXEC, 0)) if created == 0 else -1
    os.close(context)
    if mounted < 0:
        return None
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mounted)
    os.close(mounted)
    return handle


def has_more_memory(proc: int, most: int) -> bool:
    """Whether the other processes of the namespace have more than `most` bytes of memory together; a file's pages are not theirs."""
    others = [name for name in os.listdir(proc) if name.isdecimal() and int(name) != _OWN]
    # What forked processes share is counted for each at first; the exact number takes longer to get.
    return sum(_resident(proc, name) for name in others) > most and sum(_proportional(proc, name) for name in others) > most


def has_more_files() -> bool:
    """Whether a folder has more than `DISK_FILES` files and folders: bubblewrap bounds their bytes alone."""
    folders = [os.statvfs(folder) for folder in (FOLDER, TEMPORARY)]
    return any(one.f_files - one.f_ffree > DISK_FILES for one in folders)


def _resident(proc: int, name: str) -> int:
    fields = _read(proc, f"{name}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0


def _proportional(proc: int, name: str) -> int:
    for line in _read(proc, f"{name}/smaps_rollup").splitlines():
        if line.startswith(b"Pss_Anon:"):
            return int(line.split()[1]) << 10
    return _resident(proc, name)


def _read(proc: int, path: str) -> bytes:
    with contextlib.suppress(OSError):  # the process has ended
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        try:
            return os.read(handle, _STATUS_BYTES)
        finally:
            os.close(handle)
    return b""


def ended(main: int) -> int | None:
    """Waits for nobody: the wait status of process `main` if it has ended. Orphans that have ended are forgotten."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == main:
                found = status
    return found


def exit_status(wait_status: int) -> int:
    """As a shell has it: for a process that a signal ended, 128 and the signal, so never 0."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else _OF_A_SIGNAL - code


def end_all(main: int) -> int | None:
    """Kills every other process of the namespace and waits until none is left; the wait status of `main` if it was among them."""
    found = None
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return found
        if pid == main:
            found = status
