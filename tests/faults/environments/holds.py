"""Workers that stand still at points of an episode until somebody has died there, and what a run must then be equal to."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from ledger import check, read_ledger
from smoke import train

from gradbus.embedded import Stack, StackConfig
from gradbus.v1.episode_pb2 import END_REASON_FAILED
from gradbus.v1.group_pb2 import Group

PLANTED = str(Path(__file__).parents[1] / "planted.py")
POINTS = ("after-opened", "mid-draw", "after-drawn", "before-answered", "after-answered", "before-put", "after-put")
"""Of a rollout worker: a session is there; other turns are being drawn; a turn is recorded and nobody was told; a result is there and not
recorded; it is recorded and what follows is not drawn; a group is whole and not in the buffer; it is there and nobody knows."""
EARLY = {**dict.fromkeys(POINTS, (20, 60)), "before-answered": (200, 220), "before-put": (2, 6), "after-put": (2, 6)}
"""Between which passes somebody dies at each point: when an episode or a group of the first dozens is there. One point comes later, for a
run fails if five of its workers die in a row and none has sampled a task."""


def holds_of(victims, seed):
    """A death at each point."""
    draw = random.Random(seed)
    return [f"{point}:{draw.randint(*EARLY[point])}:{victim}" for point, victim in zip(POINTS, victims, strict=True)]


async def kill_as_asked(stack, folder):
    """Kills whom the held workers name, until it is cancelled."""
    done = set()
    while True:
        for asked in sorted(folder.iterdir()):
            if asked.suffix != ".done" and asked.name not in done:
                done.add(asked.name)
                await stack.kill(asked.name.rpartition(":")[2])
                asked.with_suffix(".done").touch()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def held_stack(make, folder, holds, rollouts=1, service="rollout-0"):
    """A stack in which one service stands still at the points; in the end everybody has died there."""
    folder.mkdir()
    variables = {"GRADBUS_HOLDS": ",".join(holds), "GRADBUS_HOLDS_DIR": str(folder)}
    command = [sys.executable, PLANTED, "holds", f"gradbus_{service.partition('-')[0]}"]
    async with make(rollouts, command_overrides={service: command}, environment_overrides={service: variables}) as stack:
        killing = asyncio.create_task(kill_as_asked(stack, folder))
        try:
            yield stack
        finally:
            killing.cancel()
    assert {asked.name for asked in folder.iterdir() if asked.suffix != ".done"} == set(holds), "not every point was reached"


async def played(stack, spec):
    """The final digest and, by index, all that happened: tokens, log-probabilities, turns, rewards. An attempt more is no difference."""
    outcome = await train(stack, spec, seconds=900.0)
    assert outcome.state == "succeeded"
    found, ledger, schedule = {}, read_ledger(stack.state.root, outcome.run_id), spec["schedule"]
    assert check(ledger, schedule["groups_per_step"], schedule["steps"], max_staleness=1, fixed_lag=True) == []
    for index, entry in ledger.entries.items():
        group = Group.FromString(entry.group)
        for sample in group.samples:
            assert sample.episode.end_reason != END_REASON_FAILED
            sample.episode.attempt = 0
        found[index] = entry.verdict, [sample.SerializeToString(deterministic=True) for sample in group.samples], list(entry.rewards)
    return outcome.digest, found


class Calm:
    """The undisturbed runs by their number of steps, each made once."""

    def __init__(self, folder, spec_of, play=played):
        self.folder, self.spec_of, self.play, self.known = folder, spec_of, play, {}

    async def of(self, steps):
        """Digest and episodes."""
        if steps not in self.known:
            async with Stack(StackConfig(state=self.folder / str(steps), port=0)) as stack:
                self.known[steps] = await self.play(stack, self.spec_of(steps))
        return self.known[steps]
