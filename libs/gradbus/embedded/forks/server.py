"""A fork server of a stack: imports once what some of its services share, and forks each of them from it.

`python -m gradbus.embedded.forks.server CONTROL_FD SUPERVISOR_PID MODULE...` imports the modules and serves. The control socket keeps
messages apart, each a JSON object:

    request, with the service's log and its environment    replies
    {"id": n, "module": name}                               {"id": n, "pid": pid}, or {"id": n, "error": text}
                                                            {"pid": pid, "status": exit code, or -signal}, when it has ended

It has one thread, so a fork copies a process in a known state. It never reads the environments, which may hold secrets: a service
reads its own. Services end with it, and it ends with its supervisor.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gradbus.embedded.forks.client import MESSAGE_BYTES
from gradbus.parent_death import die_with

_PR_SET_NAME: Final = 15
_ARGUMENTS: Final = 48
"""Place of the arguments' first address in /proc/PID/stat (proc(5)); the next is their end."""


@dataclass(frozen=True, slots=True)
class _Service:
    """What a child of this process becomes."""

    module: str
    log: int
    environment: int
    server: int


def main(control_fd: int, supervisor: int, modules: list[str]) -> None:
    """Serves the supervisor until it closes the control socket; in a child, runs the service."""
    die_with(supervisor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in modules:
        import_module(name)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        sys.exit(f"{', '.join(modules)} have started {threads - 1} threads, which a fork would not copy")
    sys.stdout.flush()  # else each child writes it again
    gc.collect()
    gc.freeze()  # the pages of what exists now stay shared with the children
    service = _serve(socket.socket(fileno=control_fd))
    if service is not None:
        _become(service)


def _serve(control: socket.socket) -> _Service | None:
    """The service to become, in a child; None once the supervisor has closed the control socket."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    with control, woken, waker:
        while True:
            ready, _, _ = select.select([control, woken], [], [])
            if woken in ready:
                woken.recv(MESSAGE_BYTES)
                _report_ended(control)
            if control in ready:
                message, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
                if not message:
                    return None
                service = _forked(control, json.loads(message), *fds)
                if service is not None:
                    signal.set_wakeup_fd(-1)
                    return service


def _forked(control: socket.socket, request: dict[str, Any], log: int, environment: int) -> _Service | None:
    """The service to become, in the child; in this process None, once the reply is sent."""
    reply: dict[str, object]
    server = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            return _Service(request["module"], log, environment, server)
        reply = {"pid": pid}
    except OSError as error:
        reply = {"error": f"cannot fork: {error}"}
    os.close(log)
    os.close(environment)
    control.send(json.dumps({"id": request["id"], **reply}).encode())
    return None


def _report_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.send(json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def _become(service: _Service) -> None:
    """Runs the service as `python -m MODULE` would."""
    os.setsid()  # Ctrl-C in a terminal must reach only the supervisor
    die_with(service.server)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(service.environment, "rb") as file:
        environment = _set_by_imports() | json.load(file)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(service.log, 1)
    os.dup2(service.log, 2)
    os.close(service.log)
    _show_as(service.module)
    sys.argv = [service.module]
    runpy.run_module(service.module, run_name="__main__", alter_sys=True)


def _set_by_imports() -> dict[str, str]:
    """The variables that modules have set while they were imported, for what they import; a service's own come before them."""
    given = {variable.partition(b"=")[0] for variable in Path("/proc/self/environ").read_bytes().split(b"\0")}
    return {name: value for name, value in os.environ.items() if os.fsencode(name) not in given}


def _show_as(module: str) -> None:
    """Lets `ps` and `top` show the service's module in place of this one."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, module.encode()[:15], 0, 0, 0)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, end = (int(fields[place - 3]) for place in (_ARGUMENTS, _ARGUMENTS + 1))
    shown = b"\0".join((sys.executable.encode(), b"-m", module.encode()))
    if 0 < first < end:  # 0: not to be known here
        ctypes.memmove(first, shown[: end - first - 1].ljust(end - first, b"\0"), end - first)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
