"""The fork server: imports transformers once, without torch, and forks a limited process for each run's tokenizer.

`python -m gradbus.tokenizer.fork_server CONTROL_FD PARENT_PID`. The control socket carries frames; a request is answered before the
next one comes:

    request                                   reply
                                              {"ready": true}, or {"error": text} and the end, once at the start
    {"fork": true}, with the child's socket   {"pid": pid}, or {"error": text}
    {"end": pid}                              {"status": exit code, or -signal; null for a process that is not a child}

It has one thread, so a fork copies a process in a known state. Its children end with it, and it ends with its parent.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from importlib import import_module
from typing import Any, Final

from gradbus.parent_death import die_with
from gradbus.tokenizer.child import serve
from gradbus.tokenizer.errors import described
from gradbus.tokenizer.frames import CONTROL_BYTES, Frame

_WARM: Final = (
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.configuration_llama",
    "transformers.models.qwen2.configuration_qwen2",
    "transformers.tokenization_utils_tokenizers",
    "transformers.utils.chat_template_utils",
    "transformers.image_utils",
    "transformers.video_utils",
)
"""All that a tokenizer imports while it loads and renders, so that no run waits for it."""


def main(control_fd: int, parent: int) -> None:
    """Serves the parent until it closes the control socket."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent, which still needs its tokenizers
    control = socket.socket(fileno=control_fd)
    try:
        sys.modules["torch"] = None  # type: ignore[assignment] # tokenizers do without, and its import takes seconds and 200 MB
        for name in _WARM:
            import_module(name)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: reported to its parent
        control.send(Frame({"error": described(error)}).to_bytes())
        return
    gc.collect()
    gc.freeze()  # the pages of what exists now stay shared with the children
    control.send(Frame({"ready": True}).to_bytes())
    _serve_parent(control)


def _serve_parent(control: socket.socket) -> None:
    children: set[int] = set()
    while True:
        message, fds, _, _ = socket.recv_fds(control, CONTROL_BYTES, 1)
        if not message:
            break
        header = Frame.from_bytes(message).header
        control.send(Frame(_forked(control, fds, children) if "fork" in header else _ended(header["end"], children)).to_bytes())
    for pid in tuple(children):
        _ended(pid, children)


def _forked(control: socket.socket, fds: list[int], children: set[int]) -> dict[str, Any]:
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        pid, failure = -1, described(error)
    if pid == 0:
        _run_child(control, fds[0], server)
    for fd in fds:
        os.close(fd)
    if pid < 0:
        return {"error": failure}
    children.add(pid)
    return {"pid": pid}


def _run_child(control: socket.socket, fd: int, server: int) -> None:
    status = 1
    try:
        control.close()
        die_with(server)
        serve(socket.socket(fileno=fd))
        status = 0
    finally:
        os._exit(status)


def _ended(pid: int, children: set[int]) -> dict[str, Any]:
    """Kills a child, unless it has ended, and waits for its end."""
    if pid not in children:
        return {"status": None}
    os.kill(pid, signal.SIGKILL)  # a child that has ended stays a zombie until it is waited for, so the pid is still its own
    children.remove(pid)
    return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
