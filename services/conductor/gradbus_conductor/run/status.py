"""Writes a run's status, and the state changes among its events."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean
from typing import Final

from gradbus.algorithms import Algorithm
from gradbus.bus import Bucket, EventLog, Level, OwnedKey
from gradbus.control.runs import FINAL_STATES, RunProgress, RunState, RunStatus, WorkerPresence
from gradbus.telemetry import run_metrics
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_FILTERED, LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus_conductor.evaluation.results import HeldOutLoss, Result

_RATES_SECONDS: Final = 2.0
"""Between two writes of what changes all the time: rates, shares of time, counts, and the seconds in the text of a wait."""
_NUMBER: Final = re.compile(r"\d+")
_NEWS: Final = ("step", "version", "checkpoint_step", "accuracy", "held_out_loss", "workers", "determinism")
"""What of the progress is told at once."""
_IDLE_STATES: frozenset[RunState] = FINAL_STATES | {"queued", "paused"}


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What the loop knows of its run at the end of a pass."""

    version: int
    """Newest published version; -1 before the first."""
    checkpoint: int
    """Step of the newest checkpoint; -1 before the first."""
    step: int = -1
    """Steps that a trainer has made, if that is more than the version says."""
    evaluation: Result | None = None
    """The newest one."""
    warning: str = ""
    """What the user should know while the run goes on."""
    scoring_seconds: float = 0.0
    """Time with a call of the scorer in flight, since the loop began."""
    reference_seconds: float = 0.0
    """Time with a call of the reference in flight, since the loop began."""
    response_tokens: int = 0
    """Response tokens fetched since the loop began."""
    trainers: Sequence[WorkerPresence] = ()
    rollouts: Sequence[WorkerPresence] = ()


class RunStatusWriter:
    """Writes `<run>.status` when a user would see a difference: of news at once, of rates within `_RATES_SECONDS`, and else not at all.

    Each write is synced, and a conductor has many runs.
    """

    def __init__(self, runs_bucket: Bucket, events: EventLog, run_id: str, groups_per_step: int) -> None:
        self._stored = OwnedKey(runs_bucket, f"{run_id}.status")
        self._groups_per_step = groups_per_step
        self._rewards: list[tuple[int, float]] = []
        """A heap of index and mean reward, of the last groups by index: those of a step may arrive among those of the next one."""
        self._rates_due = 0.0
        self._news: tuple[object, ...] = ()
        """As last written by `write`; empty after any other change."""
        self._last_rates: tuple[float, RunSnapshot] | None = None
        """When rates were last computed, and from which snapshot."""
        self._last_progress: tuple[RunState, int, float] = ("queued", -1, time.monotonic())
        """State and step as last exported, and since when."""
        self._status = RunStatus(state="queued")
        self.events = events
        self.metrics = run_metrics(run_id)
        self.metrics.set("gradbus.run.time_since_step", self._idle_seconds)

    @property
    def paused(self) -> bool:
        """Whether the last written state is `paused`."""
        return self._status.state == "paused"

    @property
    def status(self) -> RunStatus:
        """The last written status."""
        return self._status

    async def recover(self) -> RunStatus:
        """Reads the status that an earlier conductor wrote."""
        if (value := await self._stored.read()) is not None:
            self._status = RunStatus.model_validate_json(value)
        return self._status

    def begin(self, prompts: str, evaluation_prompts: str) -> None:
        """Notes that the run has a trainer, and the digests by which workers find the prompts."""
        update = {"prompts": prompts, "evaluation_prompts": evaluation_prompts, "yielded_unix_ns": 0}
        self._status = self._status.model_copy(update=update)

    def count(self, entries: Iterable[LogEntry], algorithm: Algorithm, group_size: int) -> None:
        """Adds appended groups to the progress."""
        progress = self._status.progress
        for entry in entries:
            progress.filtered += entry.verdict == VERDICT_FILTERED
            progress.dropped += entry.verdict == VERDICT_DROPPED
            values = [reward.reward for reward in algorithm.rewards_of(entry, group_size) if reward.status == REWARD_STATUS_OK]
            if values:
                heappush(self._rewards, (entry.index, fmean(values)))
                if len(self._rewards) > self._groups_per_step:
                    heappop(self._rewards)

    async def write(self, state: RunState, snapshot: RunSnapshot, waiting_for: str = "") -> None:
        """Takes the snapshot into the progress, and writes the status if it says something new."""
        now = asyncio.get_running_loop().time()
        progress = self._status.progress
        # Even if nothing is written now: the final status carries the progress.
        self._update_progress(progress, snapshot)
        self._export(state, progress)
        warning = snapshot.warning or next((trainer.warning for trainer in snapshot.trainers if trainer.warning), "")
        news = state, warning, _NUMBER.sub("", waiting_for), *(getattr(progress, name) for name in _NEWS)
        if news == self._news and now < self._rates_due:
            return
        if now >= self._rates_due:
            self._rates_due = now + _RATES_SECONDS
            self._update_rates(now, progress, snapshot)
        if not self._says(state, warning, waiting_for):
            await self.transition(state, warning, waiting_for)
        self._news = news

    async def yield_trainer(self, reason: str) -> None:
        """Writes that the run is queued again because its scorer is away. Raises FencedError as `transition` does."""
        self._status = self._status.model_copy(update={"yielded_unix_ns": time.time_ns()})
        await self.transition("queued", reason)

    async def transition(self, state: RunState, reason: str = "", waiting_for: str = "", ending: RunState | None = None) -> None:
        """Writes the status now; a changed state becomes an event. An `ending`, once set, stays.

        Raises FencedError if another conductor wrote since: a process that froze must not overwrite its successor's status.
        """
        value = self.change(state, reason, waiting_for, ending)
        if state in FINAL_STATES:
            # The last event is stored before the final status: a client that waits for the end then finds all events.
            await self.events.flush()
        await self._stored.write(value)

    def change(self, state: RunState, reason: str = "", waiting_for: str = "", ending: RunState | None = None) -> bytes:
        """The new value of the status, which is to be written after the event that this queues."""
        changed = state != self._status.state
        self._news = ()
        self._export(state, self._status.progress)
        finished = time.time_ns() if state in FINAL_STATES else 0
        update = {
            "state": state,
            "reason": reason,
            "waiting_for": waiting_for,
            "ending": ending or self._status.ending,
            "updated_unix_ns": time.time_ns(),
            "finished_unix_ns": finished,
        }
        self._status = self._status.model_copy(update=update)
        if changed:
            level: Level = "error" if state == "failed" else "warning" if state.startswith("waiting_for") else "info"
            text = reason or waiting_for
            # The status may not be written after its event: whoever takes the run then emits the event again under the same key.
            key = f"state:{state}" if finished else f"state:{state}:{self._stored.revision}"
            self.events.emit("state", f"{state}: {text}" if text else state, {"state": state, "reason": text}, level, key)
        return self._status.to_bytes()

    def _says(self, state: RunState, reason: str, waiting_for: str) -> bool:
        """Whether the stored status says all this, and the progress as it is now."""
        status = self._status.model_copy(update={"state": state, "reason": reason, "waiting_for": waiting_for})
        return status.to_bytes() == self._stored.value

    def _update_progress(self, progress: RunProgress, snapshot: RunSnapshot) -> None:
        progress.version = max(0, snapshot.version)
        progress.step = max(progress.version, snapshot.step)
        progress.checkpoint_step = snapshot.checkpoint
        if snapshot.evaluation is not None:
            progress.accuracy = snapshot.evaluation.accuracy
            progress.held_out_loss = snapshot.evaluation.loss if isinstance(snapshot.evaluation, HeldOutLoss) else None
        progress.workers = len(snapshot.rollouts)
        if snapshot.rollouts:
            progress.determinism = next((one.determinism for one in snapshot.rollouts if one.determinism != "spec"), progress.determinism)
            progress.shares["generate"] = sum(worker.busy for worker in snapshot.rollouts) / len(snapshot.rollouts)
            progress.shares["load"] = sum(worker.loading for worker in snapshot.rollouts) / len(snapshot.rollouts)
        for trainer in snapshot.trainers:
            progress.shares |= trainer.shares
            progress.staleness = trainer.staleness
            progress.explained_variance = trainer.explained_variance
            progress.teacher_kl = trainer.teacher_kl
            progress.loss = trainer.loss
            progress.pair_accuracy = trainer.pair_accuracy
        if self._rewards:
            progress.reward = fmean(reward for _, reward in self._rewards)

    def _update_rates(self, now: float, progress: RunProgress, snapshot: RunSnapshot) -> None:
        if self._last_rates and now > self._last_rates[0]:
            at, last = self._last_rates
            progress.tokens_per_second = (snapshot.response_tokens - last.response_tokens) / (now - at)
            progress.shares["score"] = min(1.0, (snapshot.scoring_seconds - last.scoring_seconds) / (now - at))
            if snapshot.reference_seconds:
                progress.shares["reference"] = min(1.0, (snapshot.reference_seconds - last.reference_seconds) / (now - at))
        self._last_rates = (now, snapshot)

    def _export(self, state: RunState, progress: RunProgress) -> None:
        if state != self._last_progress[0]:
            # Metrics are pushed: a series that is left out would keep its last value for a while.
            self.metrics.set("gradbus.run.state", 0, {"gradbus.state": self._last_progress[0]})
        self.metrics.set("gradbus.run.state", 1, {"gradbus.state": state})
        if (state, progress.step) != self._last_progress[:2]:
            self._last_progress = (state, progress.step, time.monotonic())
        self.metrics.set("gradbus.run.step", progress.step)
        if progress.accuracy is not None:
            self.metrics.set("gradbus.evaluation.score", progress.accuracy)
        if progress.held_out_loss is not None:
            self.metrics.set("gradbus.evaluation.loss", progress.held_out_loss)

    def _idle_seconds(self) -> float:
        """Seconds without a step or a change of state; 0 in a state that makes no steps."""
        state, _, since = self._last_progress
        return 0.0 if state in _IDLE_STATES else time.monotonic() - since
