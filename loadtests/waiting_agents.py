"""Measures a whole stack beside waiting agents: `python loadtests/waiting_agents.py [--agents 100 1000 10000]`.

The services are real, and engine and learner are stubs. One run has so many episodes at once. First they wait for an agent; then each
has one, which claimed it and waits for its turn, for the engine draws no turn to its end; then the run is cancelled, and every agent is
told that its episode is over. Each episode is claimed once. Agents are plain connections of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from agent_endpoint import CLAIMED, Connection

from gradbus.process.listener import raise_open_files
from gradbus.process.usage import Usage
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.processes import cpu_seconds
from gradbus_load.rig import Bench, Rig, running

SERVICES: Final = ("agent", "gateway", "conductor", "rollout", "buffer", "nats")
EPISODES_PER_SLOT: Final = 4
"""That a rollout worker plays at a time."""
MOST_SLOTS: Final = 1024
SMALL_GROUP: Final = 4
LARGE_GROUP: Final = 32
"""A worker has 128 groups in progress, so that thousands of episodes at once need large ones."""
TURN_SECONDS: Final = 86_400.0
TOKENS: Final = 16
BUSY: Final = 0.6
"""Seconds of the processor, in a second, of a stack that has work."""


@dataclass(frozen=True)
class Taken:
    """What the processes of a service take."""

    cores: float
    mib: float
    files: int
    """Open ones: sockets, above all."""


@dataclass
class Crowd:
    """The agents of one run."""

    bench: Bench
    run_id: str
    count: int
    asked: int = 0
    all_asked: asyncio.Event = field(default_factory=asyncio.Event)
    agents: list[asyncio.Task[None]] = field(default_factory=list)

    async def claim(self) -> None:
        """Claims every episode once, or raises AssertionError; each agent asks for its turn."""
        claims, claimed = Connection(self.port, self.bench.stack.api_key), list[str]()
        while len(claimed) < self.count:
            offers = await claims.post("/v1/agent/claim", {"run": self.run_id, "capacity": CLAIMED, "wait_seconds": 60})
            if not offers:
                raise AssertionError(f"only {len(claimed)} of {self.count} episodes are offered")
            for offer in offers:
                claimed.append(offer["episode"])
                self.agents.append(asyncio.create_task(self._agent(offer)))
        claims.close()
        if len(set(claimed)) != len(claimed):
            raise AssertionError("an episode was claimed twice")
        await self.all_asked.wait()

    @property
    def port(self) -> int:
        """At which agents reach their service."""
        return int(self.bench.stack.state.read("ports.json")["agent.http"])

    async def _agent(self, offer: dict[str, Any]) -> None:
        connection = Connection(self.port, offer["api_key"])
        asking = connection.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Begin."}]})
        self.asked += 1
        if self.asked == self.count:
            self.all_asked.set()
        try:
            await asking
        except AssertionError:  # another status than 200
            connection.close()
        else:
            raise RuntimeError("no turn is drawn")


def taken(bench: Bench, before: dict[str, Usage], seconds: float) -> dict[str, Taken]:
    """By service; rollout workers together."""
    after = bench.usage()
    spent, found = cpu_seconds(before, after), {}
    for service in SERVICES:
        names = [name for name in after if name.partition("-")[0] == service]
        files = sum(psutil.Process(bench.pids()[name]).num_fds() for name in names)
        mib = sum(after[name].held_bytes for name in names) / (1 << 20)
        found[service] = Taken(sum(spent[name] for name in names) / seconds, mib, files)
    return found


async def watched(bench: Bench, seconds: float) -> dict[str, Taken]:
    """What the services take while nothing happens but waiting."""
    before = bench.usage()
    await asyncio.sleep(seconds)
    return taken(bench, before, seconds)


async def settled(bench: Bench) -> None:
    """Waits until the services are done with what they were given."""
    while True:
        before = bench.usage()
        await asyncio.sleep(1.0)
        if sum(cpu_seconds(before, bench.usage()).values()) < BUSY:
            return


def spec_of(bench: Bench, agents: int) -> dict[str, Any]:
    """A run of one step whose episodes are all open at once."""
    size = LARGE_GROUP if agents >= EPISODES_PER_SLOT * LARGE_GROUP else SMALL_GROUP
    made = bench.spec(
        f"waiting-{agents}",
        environment={"agent": "pull", "max_turns": 2, "step_seconds": 600},
        # As many as a worker may have of them, for one worker may fetch more tasks than another.
        rollout={"slots": max(4, min(MOST_SLOTS, -(-agents // EPISODES_PER_SLOT))), "group_size": size, "max_new_tokens": TOKENS},
        schedule={"groups_per_step": -(-agents // size), "steps": 1, "max_staleness": 0},
        checkpoint={"every": 1},
        deterministic=False,  # a worker of a deterministic run draws a sample first, and this engine draws none
    )
    del made["reward"]
    return made


async def measure(agents: int, seconds: float) -> dict[str, dict[str, Taken]]:
    """By what the agents wait for, what each service takes."""
    rollouts = -(-agents // (EPISODES_PER_SLOT * MOST_SLOTS))
    engine = EngineTiming(step_seconds=TURN_SECONDS / TOKENS, median_tokens=float(TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), Rig(engine, LearnerTiming(step_seconds=0.1), rollouts)) as bench:
            alone = await watched(bench, seconds)
            run_id = await bench.submit(spec_of(bench, agents))
            await asyncio.sleep(10.0)
            await settled(bench)
            crowd = Crowd(bench, run_id, agents)
            offered = await watched(bench, seconds)
            await crowd.claim()
            asked = await watched(bench, seconds)
            await asyncio.to_thread(bench.client.cancel, run_id)
            await asyncio.gather(*crowd.agents)
            await settled(bench)
            over = await watched(bench, seconds)
    return {"nobody": alone, "an agent": offered, "a turn": asked, "nobody any more": over}


def rows(agents: int, found: dict[str, dict[str, Taken]]) -> Sequence[str]:
    """Of the table."""
    for waits_for, services in found.items():
        cells = (
            f"{of.cores:.3f}, {of.mib:.0f}, {of.files}" if (of := services.get(name)) is not None and of.files else "" for name in SERVICES
        )
        yield f"| {0 if waits_for.startswith('nobody') else agents:,} | {waits_for} | {' | '.join(cells)} |"


async def main(options: argparse.Namespace) -> None:
    """Prints lines for each number of agents."""
    raise_open_files()
    print(f"| waiting | for | {' | '.join(SERVICES)} |")
    print("|" + "---|" * (2 + len(SERVICES)))
    for agents in options.agents:
        print("\n".join(rows(agents, await measure(agents, options.seconds))), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures a whole stack beside waiting agents; cells are cores, MiB and open files.")
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    asyncio.run(main(parser.parse_args()))
