"""The run's status and the lines of its history that the conductor writes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Sequence

from gradbus.bus import Bucket, EventLog, Level, OwnedKey, View
from gradbus.control.runs import FINAL_STATES, DesiredState, RunProgress, RunState, RunStatus, WorkerPresence
from gradbus.telemetry import run_metrics
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_FILTERED, LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus_conductor.run.heads import Heads

_WRITE_SECONDS = 0.5
_AT_REST: frozenset[RunState] = FINAL_STATES | {"queued", "paused"}


class Report:
    """Writes `<run>.status` when the state changes, and at most twice a second otherwise."""

    def __init__(self, runs: Bucket, events: EventLog, run_id: str, size: int) -> None:
        self._stored = OwnedKey(runs, f"{run_id}.status")
        self._run_id = run_id
        self._rewards: deque[float] = deque(maxlen=size)
        self._written_at = 0.0
        self._measured: tuple[float, float, int] = (0.0, 0.0, 0)
        self._status = RunStatus(state="queued")
        self.events = events
        self.accuracy: float | None = None
        self.warning = ""
        """What the user should know while the run goes on."""
        self.scoring_seconds = 0.0
        self.tokens = 0
        self._moved: tuple[RunState, int, float] = ("queued", -1, time.monotonic())
        self.numbers = run_metrics(run_id)
        """What metrics tell of the run."""
        self.numbers.set("gradbus.run.time_since_step", self._still)

    @property
    def paused(self) -> bool:
        """Whether the run stands still by its user's wish."""
        return self._status.state == "paused"

    @property
    def status(self) -> RunStatus:
        """As last written."""
        return self._status

    async def recover(self) -> RunStatus:
        """Reads what an earlier conductor wrote."""
        if (value := await self._stored.read()) is not None:
            self._status = RunStatus.model_validate_json(value)
        return self._status

    def desired(self, view: View) -> DesiredState:
        """What the user wants."""
        value = view.get(f"{self._run_id}.desired")
        wish: DesiredState = json.loads(value) if value else "running"
        return wish

    def prepared(self, prompts: str, evaluation_prompts: str) -> None:
        """Notes where workers find the prompts."""
        self._status = self._status.model_copy(update={"prompts": prompts, "evaluation_prompts": evaluation_prompts})

    def observe(self, trainers: Sequence[WorkerPresence], rollouts: Sequence[WorkerPresence]) -> None:
        """Takes over what workers say of themselves."""
        progress = self._status.progress
        progress.workers = len(rollouts)
        if rollouts:
            progress.shares["generate"] = sum(worker.busy for worker in rollouts) / len(rollouts)
        for trainer in trainers:
            progress.shares |= trainer.shares
            progress.staleness = trainer.staleness

    def count(self, entries: Iterable[LogEntry]) -> None:
        """Adds appended groups to the progress."""
        progress = self._status.progress
        for entry in entries:
            progress.filtered += entry.verdict == VERDICT_FILTERED
            progress.dropped += entry.verdict == VERDICT_DROPPED
            values = [reward.reward for reward in entry.rewards if reward.status == REWARD_STATUS_OK]
            if values:
                self._rewards.append(sum(values) / len(values))

    async def write(self, state: RunState, heads: Heads, waiting_for: str = "") -> None:
        """Writes the status if it is time to."""
        now = asyncio.get_running_loop().time()
        progress = self._status.progress
        # Noted even when it is not written now: the run's last word carries it.
        progress.version = progress.step = max(0, heads.version)
        progress.checkpoint_step = heads.checkpoint
        progress.accuracy = self.accuracy
        self._show(state, progress)
        if self._rewards:
            progress.reward = sum(self._rewards) / len(self._rewards)
        if state == self._status.state and now - self._written_at < _WRITE_SECONDS:
            return
        self._measure(now, progress)
        await self.transition(state, self.warning, waiting_for)
        self._written_at = now

    async def transition(self, state: RunState, reason: str = "", waiting_for: str = "", ending: RunState | None = None) -> None:
        """Writes the status now; a changed state becomes an event. An `ending` stays.

        Raises FencedError if another conductor wrote since: a zombie must not take back what was said, least of all the final word.
        """
        changed = state != self._status.state
        self._show(state, self._status.progress)
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
            level: Level = "error" if state == "failed" else "warning" if state == "waiting_for_reward" else "info"
            text = reason or waiting_for
            # A conductor may die between the history's last line and the status: the next one says it again, under the same key.
            key = f"state:{state}" if finished else ""
            self.events.emit("state", f"{state}: {text}" if text else state, {"state": state, "reason": text}, level, key)
        if finished:
            # The history ends before the status says so: who waits for the end finds all of it.
            await self.events.flush()
        await self._stored.write(self._status.to_bytes())

    def _measure(self, now: float, progress: RunProgress) -> None:
        at, scoring, tokens = self._measured
        if at and now > at:
            progress.tokens_per_second = (self.tokens - tokens) / (now - at)
            progress.shares["score"] = min(1.0, (self.scoring_seconds - scoring) / (now - at))
        self._measured = (now, self.scoring_seconds, self.tokens)

    def _show(self, state: RunState, progress: RunProgress) -> None:
        if state != self._moved[0]:
            # Numbers are pushed: a series that is left out keeps its last value for a while.
            self.numbers.set("gradbus.run.state", 0, {"gradbus.state": self._moved[0]})
        self.numbers.set("gradbus.run.state", 1, {"gradbus.state": state})
        if (state, progress.step) != self._moved[:2]:
            self._moved = (state, progress.step, time.monotonic())
        self.numbers.set("gradbus.run.step", progress.step)
        if progress.accuracy is not None:
            self.numbers.set("gradbus.evaluation.score", progress.accuracy)

    def _still(self) -> float:
        state, _, since = self._moved
        return 0.0 if state in _AT_REST else time.monotonic() - since
