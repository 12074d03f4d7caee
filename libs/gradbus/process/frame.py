"""Runs a service: logs, signals, health pages, and an exit status that means something."""

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
from gradbus.telemetry import configure_logging, export_process_metrics, exported, get_logger

_log = get_logger(__name__)
DRAIN_SECONDS = 20.0
_THREADS_SECONDS = 5.0


class Process:
    """What a service sees of its own process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = asyncio.Event()
        """Set by SIGTERM and SIGINT: finish what is in flight or hand it back, then return."""
        self.ready = False
        """Shown by /readyz; the service sets it once it can do its work."""


Main = Callable[[Process], Awaitable[None]]
Loop = Callable[[], asyncio.AbstractEventLoop]


def run_process(name: str, settings: ProcessSettings, main: Main, loop: Loop | None = None) -> int:
    """Runs `main` until it returns; the exit status: 0 after a drain, 1 after an error. `loop` makes another event loop than asyncio's."""
    configure_logging(name, settings.log_level)
    with exported(name, settings.worker_id), _bounded_end() as over, asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_run(name, settings, main, over))


@contextmanager
def _bounded_end() -> Iterator[Callable[[], None]]:
    """Gives what is to be called when the work is over. A thread that never returns, on a stuck device, must not hold the process."""
    cut = Timer(_THREADS_SECONDS, _cut)
    cut.daemon = True
    try:
        yield cut.start
    finally:
        cut.cancel()


def _cut() -> None:
    _log.error("threads_left", seconds=_THREADS_SECONDS)
    os._exit(1)


async def _run(name: str, settings: ProcessSettings, main: Main, over: Callable[[], None]) -> int:
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
            # A drain that does not end is worse than a cut: the level-triggered peers repair a cut.
            _log.error("drain_ran_out", seconds=DRAIN_SECONDS)
            work.cancel()
            return 1
        work.result()
    except GradbusError as error:
        _log.error("stopped", error=f"{type(error).__name__}: {error}")
        return 1
    except Exception:  # noqa: BLE001 - the process boundary: logged whole, then the supervisor decides
        _log.exception("crashed")
        return 1
    finally:
        await pages.stop()
        over()
    _log.info("stopped")
    return 0
