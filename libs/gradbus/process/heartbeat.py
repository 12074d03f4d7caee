"""Heartbeat of a worker: publishes its presence and follows its assignment."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import background, cancel_and_wait
from gradbus.bus import Bucket, Buckets, Bus, View
from gradbus.control.failures import RunFailures, storable
from gradbus.control.runs import DesiredState, RunRecord, WorkerPresence
from gradbus.errors import FencedError, GradbusError, RestartNeededError
from gradbus.process.runner import Process
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_BEAT_SECONDS = 1.0
_SHORTEST_BEAT_SECONDS = 0.1
_TROUBLE_SECONDS = 2.0
_SEEN_SECONDS = 1.0
"""The conductor looks at its workers twice a second."""


class WorkerHeartbeat:
    """Publishes `presence` every second and on request. The worker edits `presence` itself."""

    def __init__(self, bus: Bus, presence: WorkerPresence) -> None:
        self._bus = bus
        self._publish_requested = asyncio.Event()
        self._workers: Bucket  # once it is present
        self._assigned: View | None = None
        self._desired: View | None = None
        self._failures = RunFailures("")
        self.presence = presence

    @asynccontextmanager
    async def present(self) -> AsyncIterator[None]:
        """Publishes the presence inside the block and deletes it after it, so that claims are handed back at once."""
        self._workers = workers = await self._bus.bucket(Buckets.WORKERS)
        assignments = await self._bus.bucket(Buckets.ASSIGNMENTS)
        try:
            async with background(self._beat(), "presence"), assignments.view(self.presence.worker) as self._assigned:
                yield
        finally:
            with contextlib.suppress(NatsError, APIError, TimeoutError):
                await workers.delete(self.presence.worker)

    def publish_now(self) -> None:
        """Publish the heartbeat now: other services wait for this change."""
        self._publish_requested.set()

    async def publish(self) -> None:
        """Publishes the heartbeat, whatever the event loop has to do meanwhile. A failure is logged; the next one comes within a second."""
        try:
            await self._workers.put(self.presence.worker, self.presence.to_bytes())
        except (NatsError, APIError, TimeoutError) as error:
            _log.info("heartbeat_failed", error=f"{type(error).__name__}: {error}")

    def show_preparing(self, what: str) -> None:
        """Shows what the worker does before it can work on its run; empty once it can."""
        self.presence.preparing = what
        self.publish_now()

    def progressed(self, reached: int) -> None:
        """The run has come to `reached`, the trainer's step or the highest index of sampled groups: it is prepared and works here."""
        if self.presence.reached < 0:
            self.publish_now()  # until it is seen, the conductor takes this worker's death for that of one that prepared the run
        self.presence.reached = max(reached, self.presence.reached)
        self._failures.progressed(reached)
        self._show_failures()

    @property
    def assigned(self) -> str:
        """The id of the assigned run; empty when there is none."""
        value = self._assigned.get(self.presence.worker) if self._assigned else None
        return str(json.loads(value)) if value else ""

    def desired(self, run_id: str) -> DesiredState:
        """The state that the user requested for the assigned run."""
        value = self._desired.get(f"{run_id}.desired") if self._desired else None
        state: DesiredState = json.loads(value) if value else "running"
        return state

    async def serve(
        self, process: Process, work: Callable[[RunRecord], Awaitable[None]], run_over: Callable[[], None] = lambda: None
    ) -> None:
        """Publishes the heartbeat and serves one assigned run after the other until the process stops.

        `work` is cancelled when the assignment ends. An error in it is shown as trouble, and the run is tried again; the conductor ends a
        run that fails in the same way again and again. `run_over` is called in a thread when a run is over, and may end the worker.
        """
        async with self.present():
            process.ready = True
            await self._serve_assigned(process, work, run_over)

    async def _serve_assigned(self, process: Process, work: Callable[[RunRecord], Awaitable[None]], run_over: Callable[[], None]) -> None:
        while not process.stopping.is_set():
            run_id = self.assigned
            if not run_id:
                await self._wait_for_change(process)
                continue
            task = asyncio.create_task(self._work(run_id, work), name=f"work {run_id}")
            while not task.done() and self.assigned == run_id and not process.stopping.is_set():
                await self._wait_for_change(process, task)
            await cancel_and_wait(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and (isinstance(error, RestartNeededError) or not isinstance(error, Exception)):  # or a library's panic
                raise error
            del task, error  # they hold what the run held
            self._clear_run()
            if process.stopping.is_set():
                await self.publish()
                await asyncio.sleep(_SEEN_SECONDS)  # the conductor sees that the run did not end this process
            if self.assigned != run_id:
                await asyncio.to_thread(run_over)

    async def _work(self, run_id: str, work: Callable[[RunRecord], Awaitable[None]]) -> None:
        runs = await self._bus.bucket(Buckets.RUNS)
        stored = await runs.get(f"{run_id}.spec")
        if stored is None:
            await asyncio.sleep(_TROUBLE_SECONDS)
            return
        if run_id != self._failures.run_id:
            self._failures = RunFailures(run_id)
        self._show_failures()
        self.presence.run_id = run_id
        await self.publish()  # before the run can end this process: the conductor counts that
        try:
            async with runs.view(f"{run_id}.desired") as self._desired:  # only this run: there may be thousands
                await work(RunRecord.model_validate_json(stored.value))
        except FencedError as error:
            _log.warning("run_fenced", run_id=run_id, reason=str(error))
        except RestartNeededError:
            raise  # no run can be served any more: the process ends and is restarted
        except GradbusError as error:
            _log.error("run_error", run_id=run_id, error=f"{type(error).__name__}: {error}")
            self._fail(error, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of one run: logged with its traceback, shown as trouble, tried again
            _log.exception("run_error", run_id=run_id)
            self._fail(error, f"{type(error).__name__}: {error}; see this worker's log")
        self.publish_now()
        await asyncio.sleep(_TROUBLE_SECONDS if self.presence.trouble else _SHORTEST_BEAT_SECONDS)

    def _fail(self, error: Exception, trouble: str) -> None:
        self.presence.trouble = storable(trouble)
        self._failures.add(error)
        self._show_failures()

    def _show_failures(self) -> None:
        self.presence.failures, self.presence.failure = self._failures.count, self._failures.cause

    def _clear_run(self) -> None:
        kept = {"worker", "role", "incarnation", "queue", "engine"}
        fresh = WorkerPresence(**self.presence.model_dump(include=kept))
        for name in WorkerPresence.model_fields:
            setattr(self.presence, name, getattr(fresh, name))
        self.publish_now()

    async def _wait_for_change(self, process: Process, work: asyncio.Task[None] | None = None) -> None:
        """Returns when the assignment may have changed, `work` is done or the process stops."""
        if self._assigned is None:
            return
        signals = {asyncio.create_task(self._assigned.changed.wait()), asyncio.create_task(process.stopping.wait())}
        await asyncio.wait(signals | ({work} if work else set()), timeout=_BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._assigned.changed.clear()
        for signal in signals:
            signal.cancel()

    async def _beat(self) -> None:
        while True:
            self._publish_requested.clear()
            await self.publish()
            await asyncio.sleep(_SHORTEST_BEAT_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_SECONDS - _SHORTEST_BEAT_SECONDS):
                    await self._publish_requested.wait()
