"""Runs a service process: logs, signals, health pages, bounded shutdown and exit status."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from gradbus.errors import GradbusError
from gradbus.process.health import HealthPages
from gradbus.process.settings import ProcessSettings
from gradbus.telemetry import configure_logging, export_process_metrics, export_telemetry, get_logger

_log = get_logger(__name__)
DRAIN_SECONDS = 20.0
_THREADS_SECONDS = 5.0


class Process:
    """The service's view of its own process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = asyncio.Event()
        """Set by SIGTERM and SIGINT: finish the work in flight or hand it back, then return."""
        self.ready = False
        """Shown by /readyz; the service sets it once it can work."""


Main = Callable[[Process], Awaitable[None]]
Loop = Callable[[], asyncio.AbstractEventLoop]


def run_process(name: str, settings: ProcessSettings, main: Main, loop: Loop | None = None) -> int:
    """Runs `main` until it returns. Returns the exit status: 0 after a drain, 1 after an error. `loop` creates a custom event loop."""
    configure_logging(name, settings.log_level)
    with export_telemetry(name, settings.worker_id), _thread_watchdog() as finished, asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_run(name, settings, main, finished))


@contextmanager
def _thread_watchdog() -> Iterator[Callable[[], None]]:
    """Yields a function to call when the work is over; the process then ends within five seconds, whatever its threads do.

    A thread that never returns, for example on a stuck device, must not keep the process alive.
    """
    watchdog = Timer(_THREADS_SECONDS, _exit_now)
    watchdog.daemon = True
    try:
        yield watchdog.start
    finally:
        watchdog.cancel()


def _exit_now() -> None:
    _log.error("threads_did_not_end", seconds=_THREADS_SECONDS)
    os._exit(1)


async def _run(name: str, settings: ProcessSettings, main: Main, finished: Callable[[], None]) -> int:
    process = Process(name)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stopping.set)
    export_process_metrics(lambda: process.ready)
    pages = HealthPages(process)
    try:
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
        await pages.stop()
        finished()
    _log.info("stopped")
    return 0
