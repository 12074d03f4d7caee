"""What a process may take of its machine: time without its event loop, memory, and threads."""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import os
import resource
import sys
import threading
import traceback
from typing import Final

from gradbus.errors import RestartNeededError, SettingsError
from gradbus.memory.resident import code_bytes, return_memory
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_CHECKS: Final = 8
"""Turns of the loop, and looks at their count, within the time limit."""
_LAST_RESORT: Final = 1.5
"""Part of the time limit after which the interpreter ends the process without the watching thread."""


class LoopTurns:
    """Turns of an event loop, counted by the loop and looked at by a thread. None is lost, whenever it falls: a count is never reset."""

    def __init__(self) -> None:
        self._turns = 0
        self._seen = -1
        self._missed = 0

    def count(self) -> None:
        """Says that the loop has turned."""
        self._turns += 1

    def missed(self) -> int:
        """How many looks in a row, this one included, have found no new turn."""
        turns = self._turns  # read once: a turn that comes now is new to the next look
        self._missed = self._missed + 1 if turns == self._seen else 0
        self._seen = turns
        return self._missed


async def end_if_frozen(ready: asyncio.Event, seconds: float) -> None:
    """Ends the process, with every thread's stack in its log, when the event loop does not run for `seconds`; runs until cancelled.

    A process that starts is left alone: it may import for a long time. A thread that never releases the interpreter lock stops the watching
    thread too: then the interpreter itself writes the stacks, as plain text, and ends the process.
    """
    await ready.wait()
    turns, over = LoopTurns(), threading.Event()
    watch = contextvars.copy_context().run  # the log line names the service
    threading.Thread(target=watch, args=(_end_without_turns, turns, over, seconds), name="frozen", daemon=True).start()
    try:
        while True:
            faulthandler.dump_traceback_later(_LAST_RESORT * seconds, exit=True)
            turns.count()
            await asyncio.sleep(seconds / _CHECKS)
    finally:
        over.set()
        faulthandler.cancel_dump_traceback_later()


def _end_without_turns(turns: LoopTurns, over: threading.Event, seconds: float) -> None:
    """Many short waits, and not one long one: a process that was stopped and continued as a whole has missed one of them."""
    while turns.missed() < _CHECKS and not over.is_set():
        over.wait(seconds / _CHECKS)
    if not over.is_set():
        _log.critical("event_loop_frozen", seconds=seconds, stacks=_stacks())
        os._exit(1)


def _stacks() -> dict[str, str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    return {f"{names.get(ident, 'thread')} {ident}": "".join(traceback.format_stack(frame)) for ident, frame in frames.items()}


def limit_memory(limit: int | None) -> None:
    """Lets allocations beyond `limit` bytes fail in this process and its children, so that the error names what asked for them."""
    if limit is not None and sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def check_threads(threads: int, field: str) -> None:
    """Raises SettingsError if `threads`, which the spec's `field` asks for, are more than this machine has processors.

    They would only wait for each other, and take the processors from other runs.
    """
    processors = os.cpu_count() or 1
    if threads > processors:
        raise SettingsError(f"{field} = {threads}, but this machine has {processors} processors; set it to at most {processors}")


class IdleMemory:
    """What a worker holds without a run; what it holds beyond that and its code, once its run is over, is the run's."""

    def __init__(self, most_leftover: int) -> None:
        self._most_leftover = most_leftover
        self._idle = return_memory()

    def check(self) -> None:
        """Returns freed memory to the system. Raises RestartNeededError if too much is left: only the end of the process frees that."""
        code = code_bytes()
        leftover = return_memory() - self._idle - code
        _log.info("memory_returned", idle_bytes=self._idle, code_bytes=code, leftover_bytes=leftover)
        if leftover > self._most_leftover:
            raise RestartNeededError(
                f"{leftover / 1e6:.0f} MB of a run that is over are left, at most {self._most_leftover / 1e6:.0f} MB may be "
                "(GRADBUS_LEFTOVER_MEMORY); the worker ends: start it again"
            )
