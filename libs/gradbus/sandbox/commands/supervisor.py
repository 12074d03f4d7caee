"""Process 1 of a sandbox: starts the command, keeps its limits, and says what came of it. Standard library only.

It reads one line of JSON, a `Command`, and writes one, an `Outcome`. It never runs code of the command's; the command can neither
signal nor trace it, nor set its limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import sys
import time

from gradbus.sandbox.commands.processes import end_all, ended, has_more_files, has_more_memory
from gradbus.sandbox.commands.request import MAX_DEPTH, MAX_FILES, MAX_OUTPUT, MAX_TREE, Command, Outcome, is_path, read_command
from gradbus.sandbox.commands.restrictions import FOLDER, execute
from gradbus.sandbox.privileges import system_library

_LOOK_SECONDS = 0.02
_CHUNK = 1 << 16
_ADD_SEALS, _ALL_SEALS = 1033, 0x1 | 0x2 | 0x4 | 0x8


def main() -> None:
    """Of a sandbox that bubblewrap made."""
    supervise(system_library(), os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def supervise(libc: ctypes.CDLL, proc: int | None) -> None:
    """Runs the command that stands on the standard input. `proc`: a handle of the namespace's proc file system."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the only signal for which Python has a handler, and which the command could send
    command = read_command(json.loads(sys.stdin.buffer.readline()))
    outcome = _Supervision(command, proc).run(libc)
    sys.stdout.buffer.write(json.dumps(outcome.document()).encode() + b"\n")
    sys.stdout.buffer.flush()


class _Supervision:
    def __init__(self, command: Command, proc: int | None) -> None:
        self._command = command
        self._proc = proc
        self._outputs: dict[int, bytearray] = {}
        """By the handle that they are read from; the standard output comes first."""
        self._status: int | None = None
        self._main = 0

    def run(self, libc: ctypes.CDLL) -> Outcome:
        """Starts the command and waits until it ends or has too much of something, and no process is left."""
        _write_files(self._command)
        self._start(libc)
        end = self._watched()
        last = end_all(self._main)
        status = last if self._status is None else self._status
        self._drain()
        if end == "exited" and self._has_said_too_much():
            end = "output"
        stdout, stderr = (bytes(one[:MAX_OUTPUT]) for one in self._outputs.values())
        code = os.waitstatus_to_exitcode(status or 0)
        if end == "exited" and (code == -signal.SIGXCPU or (code == -signal.SIGKILL and _cpu_seconds() >= self._command.seconds)):
            end = "time"
        files = _kept_files() if self._command.keep else {}
        return Outcome("files" if files is None else end, code, stdout, stderr, files or {})

    def _start(self, libc: ctypes.CDLL) -> None:
        stdin = _sealed(self._command.stdin)
        (out, child_out), (err, child_err) = os.pipe(), os.pipe()
        self._main = os.fork()
        if self._main == 0:
            execute(libc, self._command, (stdin, child_out, child_err))
        for handle in (stdin, child_out, child_err):
            os.close(handle)
        self._outputs = {out: bytearray(), err: bytearray()}

    def _watched(self) -> str:
        deadline = time.monotonic() + self._command.longest
        with selectors.DefaultSelector() as selector:
            for handle in self._outputs:
                os.set_blocking(handle, False)
                selector.register(handle, selectors.EVENT_READ)
            with contextlib.suppress(OSError):  # it may have ended
                selector.register(os.pidfd_open(self._main), selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(_LOOK_SECONDS):
                    if key.fd in self._outputs and not self._read(key.fd):
                        selector.unregister(key.fd)
                self._status = ended(self._main)
                if self._has_said_too_much():
                    return "output"
                if self._status is not None:
                    return "exited"
                if time.monotonic() > deadline:
                    return "time"
                if self._proc is not None and has_more_memory(self._proc, self._command.memory_mib << 20):
                    return "memory"
                if has_more_files():
                    return "files"

    def _has_said_too_much(self) -> bool:
        return any(len(one) > MAX_OUTPUT for one in self._outputs.values())

    def _read(self, handle: int) -> bool:
        """Whether there may be more."""
        try:
            chunk = os.read(handle, _CHUNK)
        except BlockingIOError:
            return True
        self._outputs[handle] += chunk
        return bool(chunk)

    def _drain(self) -> None:
        """Reads what is left in the pipes, which nobody writes to any more."""
        for handle, output in self._outputs.items():
            while len(output) <= MAX_OUTPUT and self._read(handle):
                pass


def _cpu_seconds() -> float:
    """Of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _write_files(command: Command) -> None:
    for path, content in command.files.items():
        whole = f"{FOLDER}/{path}"
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "wb") as file:
            file.write(content)


def _sealed(content: bytes) -> int:
    """A handle of a file in memory that nobody can change any more."""
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(handle, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(handle, 0, os.SEEK_SET)
    fcntl.fcntl(handle, _ADD_SEALS, _ALL_SEALS)
    return handle


def _kept_files() -> dict[str, bytes] | None:
    """The regular files below the folder, without those that links lead to; None if they are too many, too large or too deep."""
    kept: dict[str, bytes] = {}
    size = 0
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for entry in _entries(f"{FOLDER}/{folder}"):
            path = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(PermissionError):
                    size += entry.stat(follow_symlinks=False).st_size
                if size > MAX_TREE or len(kept) >= MAX_FILES or not is_path(path):
                    return None
                with contextlib.suppress(PermissionError), open(entry.path, "rb") as file:
                    kept[path] = file.read(MAX_TREE)
        if folder.count("/") > MAX_DEPTH:
            return None
    return dict(sorted(kept.items()))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Of a folder; none of one that the command has closed to itself."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        return []
