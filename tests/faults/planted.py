"""Services with one planted fault each, for a suite that does not fail with them would prove nothing; and one that stands still for a kill.

python planted.py FAULT MODULE        starts MODULE (gradbus_trainer, ...) with FAULT in it
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import time
from collections import Counter
from pathlib import Path


def ack_early() -> None:
    """The log is trimmed as soon as a version is announced, before any checkpoint covers it."""
    from gradbus_conductor.run.checkpoints import CheckpointArchiver

    async def trim_what_was_announced(self):
        done = max(0, self._heads.version) * self._context.record.spec.schedule.groups_per_step
        for entry in await self._archive._log.read("0-0"):
            if entry.index >= done:
                break
            await self._archive._log.trim(entry.stream_id)
        self.archived_step = self._heads.checkpoint

    CheckpointArchiver.archive = trim_what_was_announced


def cursor() -> None:
    """A resumed trainer goes on behind what it had read, wherever training stood."""
    from gradbus_trainer import service
    from gradbus_trainer.step import collector

    restore = service.restore

    async def restore_cursor(*given):
        state = await restore(*given)
        if state.step:
            state.frontier.below += 16
        return state

    def take_the_next(self, step):
        there = sorted(self._items)[: self._size]
        return [self._items.pop(index) for index in there] if len(there) == self._size else None

    service.restore = restore_cursor
    collector.FixedLagCollector.take = take_the_next


def no_fence() -> None:
    """The weight store takes the word of every term."""
    from gradbus_weight_store import ledger

    ledger.Ledger._check_term = lambda self, term: None


def version_after_reply() -> None:
    """A sample is said to come from the version that the engine holds when the sample is handed over, a little late."""
    from gradbus_rollout.engines.base import Completion, GroupCompletion, TokenSpan
    from gradbus_rollout.engines.torch import TorchEngine

    generate = TorchEngine.generate

    async def generate_and_stamp(self, groups):
        done = await generate(self, groups)
        before = self.version
        for _ in range(50):  # up to half a second: else the fault is there, but rarely does harm
            if self.version != before:
                break
            await asyncio.sleep(0.01)
        return [GroupCompletion(group.key, tuple(stamped(one, self.version) for one in group.completions)) for group in done]

    def stamped(one, version):
        return Completion(one.token_ids, one.logprobs, (TokenSpan(0, len(one.token_ids), version),), one.finish)

    TorchEngine.generate = generate_and_stamp


def holds() -> None:
    """It stands still at named points until the test has killed somebody: GRADBUS_HOLDS is `point:pass:victim,...`.

    A file of that name in GRADBUS_HOLDS_DIR says that it stands there, and the suffix `.done` that it may go on.
    """
    from gradbus import crash_points

    folder = Path(os.environ["GRADBUS_HOLDS_DIR"])
    asked = {hold.rpartition(":")[0]: folder / hold for hold in os.environ["GRADBUS_HOLDS"].split(",")}
    passes: Counter[str] = Counter()

    def stand(point):
        passes[point] += 1
        place = asked.get(f"{point}:{passes[point]}")
        if place is None or place.exists():
            return
        place.touch()
        until = time.monotonic() + 60.0
        while not place.with_suffix(".done").exists() and time.monotonic() < until:
            time.sleep(0.005)

    crash_points.reached = stand


FAULTS = {fault.__name__: fault for fault in (ack_early, cursor, no_fence, version_after_reply, holds)}

if __name__ == "__main__":
    name, module = sys.argv[1:3]
    sys.argv = [module]
    FAULTS[name]()
    runpy.run_module(module, run_name="__main__")
