"""Hostile users beside a run that trains, and what that run had by itself before and after them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradbus.aio.tasks import cancel_and_wait
from gradbus.client import Client
from gradbus_hostile.answer_times import measured
from gradbus_hostile.attack import Ended, Trained, train
from gradbus_hostile.attackers import Orders, attack
from gradbus_hostile.material import Json
from gradbus_hostile.submissions import SUBMISSIONS
from gradbus_hostile.table.submission import Submission
from gradbus_hostile.target import Target, memory, new_key, settled

_SETTLE_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 10.0


@dataclass(slots=True)
class Phase:
    """Well-behaved runs one after the other, and the answers of the API meanwhile."""

    runs: list[Trained] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    """Seconds, sorted."""


@dataclass(slots=True)
class Hour:
    """What was seen."""

    before: Phase = field(default_factory=Phase)
    neighbours: Phase = field(default_factory=Phase)
    """Beside another well-behaved run: what the machine gives to two."""
    beside: Phase = field(default_factory=Phase)
    """Beside hostile users."""
    after: Phase = field(default_factory=Phase)
    ends: list[Ended] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    """Of each hostile client."""
    memory_before: dict[str, int] = field(default_factory=dict)
    memory_after: dict[str, int] = field(default_factory=dict)

    @property
    def digests(self) -> set[str]:
        """Of every well-behaved run; they have one spec."""
        return {run.digest for phase in (self.before, self.neighbours, self.beside, self.after) for run in phase.runs}


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how much."""

    minutes: float = 60.0
    """Of the attack, at least; it ends with a whole table, when every client has had a turn."""
    baseline_runs: int = 4
    """Well-behaved runs before the attack, beside each other, and after it."""
    clients_at_once: int = 8
    submissions: Sequence[Submission] = SUBMISSIONS


class Measurement:
    """Measures on an embedded stack: `client` is the well-behaved user's, `spec` the run that this user trains again and again."""

    def __init__(self, state: Path, client: Client, spec: Json, plan: Plan) -> None:
        self._state = state
        self._client = client
        self._spec = spec
        self._plan = plan
        self._hour = Hour()

    async def run(self) -> Hour:
        """The whole measurement. Raises AssertionError if a well-behaved run does not succeed."""
        hour = self._hour
        first = await train(self._client, self._spec)
        watcher = Target.of(self._state, new_key(self._state, "watcher"), first.run_id)
        async with measured(watcher, hour.neighbours.answers):
            await asyncio.gather(*(self._train(hour.neighbours, self._plan.baseline_runs // 2) for _ in range(2)))
        async with measured(watcher, hour.before.answers):
            await self._train(hour.before, self._plan.baseline_runs)
        await asyncio.sleep(_QUIET_SECONDS)
        hour.memory_before = memory(self._state)
        async with measured(watcher, hour.beside.answers):
            await self._attacked()
        hour.memory_after = await settled(self._state, hour.memory_before, _SETTLE_SECONDS)
        async with measured(watcher, hour.after.answers):
            await self._train(hour.after, self._plan.baseline_runs)
        return hour

    async def _train(self, phase: Phase, runs: int) -> None:
        for _ in range(runs):
            phase.runs.append(await train(self._client, self._spec))

    async def _attacked(self) -> None:
        over = asyncio.Event()
        beside = asyncio.create_task(self._train_until(over))
        attacking = asyncio.create_task(attack(self._orders()))
        await asyncio.wait({beside, attacking}, return_when=asyncio.FIRST_COMPLETED)
        over.set()
        if not attacking.done():  # the well-behaved run has failed
            await cancel_and_wait(attacking)
        await beside
        report = attacking.result()
        self._hour.ends, self._hour.turns = report.ends, report.turns

    def _orders(self) -> Orders:
        plan = self._plan
        keys = new_key(self._state, "hostile"), new_key(self._state, "hostile-clients")
        names = tuple(submission.name for submission in plan.submissions)
        return Orders(str(self._state), self._client.url, *keys, self._spec, names, plan.minutes, plan.clients_at_once)

    async def _train_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            self._hour.beside.runs.append(await train(self._client, self._spec))
