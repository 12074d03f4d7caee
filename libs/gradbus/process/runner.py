"""Runs a service process: logs, signals, health pages, bounded shutdown and exit status."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

import uvloop

from gradbus.errors import GradbusError, SettingsError
from gradbus.process.health import HealthPages
from gradbus.process.limits import end_if_frozen, limit_memory
from gradbus.process.settings import ProcessSettings
from gradbus.telemetry import PROCESS, configure_logging, export_process_metrics, export_telemetry, get_logger
from gradbus.tls import Certificate

_log = get_logger(__name__)
DRAIN_SECONDS = 20.0
_THREADS_SECONDS = 5.0
_EXIT_SECONDS = 10.0
_NEW_OBJECTS = 10_000
"""Before Python looks for garbage among them, by itself after 700: a step makes thousands, hardly any of which are in a cycle."""
_EXPIRES_SOON_SECONDS = 30 * 86_400.0


class Process:
    """The service's view of its own process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = asyncio.Event()
        """Set by SIGTERM and SIGINT: finish the work in flight or hand it back, then return."""
        self.has_been_ready = asyncio.Event()
        self._ready = False

    @property
    def ready(self) -> bool:
        """Shown by /readyz; the service sets it once it can work."""
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self._ready = ready
        if ready and not self.has_been_ready.is_set():
            gc.collect()
            gc.freeze()  # what exists now stays: to look for garbage in it again and again pauses the process for a tenth of a second
            gc.set_threshold(_NEW_OBJECTS)
            self.has_been_ready.set()


Main = Callable[[Process], Awaitable[None]]
Settings = TypeVar("Settings", bound=ProcessSettings)


def read_settings(name: str, kind: type[Settings]) -> Settings:
    """The settings of the service `name`. A wrong one ends the process with EX_CONFIG (78), after a log line that says what to do."""
    try:
        return kind()
    except SettingsError as error:
        configure_logging(name)
        _log.error("stopped", error=f"{type(error).__name__}: {error}")
        sys.exit(os.EX_CONFIG)


def run_process(name: str, settings: ProcessSettings, main: Main) -> int:
    """Runs `main` until it returns. Returns the exit status: 0 after a drain, 1 after an error.

    The event loop is uvloop's: a service waits and is woken some hundred times a second, and asyncio's own loop takes more for each.
    """
    configure_logging(name, settings.log_level)
    limit_memory(settings.memory_limit)
    loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with export_telemetry(name, settings.worker_id), _thread_watchdog() as finished, loop as runner:
        status = runner.run(_run(name, settings, main, finished))
    _exit_after(_EXIT_SECONDS).start()  # the interpreter waits for threads too
    return status


@contextmanager
def _thread_watchdog() -> Iterator[Callable[[], None]]:
    """Yields a function to call when the work is over; the process then ends within five seconds, whatever its threads do.

    A thread that never returns, for example on a stuck device, must not keep the process alive.
    """
    watchdog = _exit_after(_THREADS_SECONDS)
    try:
        yield watchdog.start
    finally:
        watchdog.cancel()


def _exit_after(seconds: float) -> Timer:
    watchdog = Timer(seconds, _exit_now, [seconds])
    watchdog.daemon = True
    return watchdog


def _exit_now(seconds: float) -> None:
    _log.error("threads_did_not_end", seconds=seconds)
    os._exit(1)


async def _run(name: str, settings: ProcessSettings, main: Main, finished: Callable[[], None]) -> int:
    process = Process(name)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stopping.set)
    export_process_metrics(lambda: process.ready)
    pages = HealthPages(process)
    guard = asyncio.create_task(end_if_frozen(process.has_been_ready, settings.frozen_seconds), name="frozen")
    try:
        _export_expiry(settings.certificates)
        await pages.start(settings.health)
        _log.info("started", worker=settings.worker_id)
        work = asyncio.ensure_future(main(process))
        stop = asyncio.create_task(process.stopping.wait(), name="stopping")
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        process.ready = False
        stop.cancel()
        await asyncio.wait({work}, timeout=DRAIN_SECONDS)
        if not work.done():
            # Ending without a drain is safe: other services recover from it. A drain that never ends is not.
            _log.error("drain_timed_out", seconds=DRAIN_SECONDS)
            work.cancel()
            return 1
        work.result()
    except GradbusError as error:
        _log.error("stopped", error=f"{type(error).__name__}: {error}")
        return 1
    except Exception:  # noqa: BLE001 - the process boundary: logged with its traceback, then the supervisor restarts the process
        _log.exception("crashed")
        return 1
    finally:
        guard.cancel()
        await pages.stop()
        finished()
    _log.info("stopped")
    return 0


def _export_expiry(certificates: Sequence[Certificate]) -> None:
    if not certificates:
        return
    first = min(certificates, key=lambda certificate: certificate.expires)
    PROCESS.set("gradbus.process.certificate.remaining", lambda: first.remaining)
    if first.remaining < _EXPIRES_SOON_SECONDS:
        _log.warning("certificate_expires_soon", path=str(first.chain), seconds=int(first.remaining))
