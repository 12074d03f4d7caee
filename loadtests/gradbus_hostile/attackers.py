"""The hostile users, in a process of their own at a low priority: `python -m gradbus_hostile.attackers`.

It reads `Orders` as JSON on its input, attacks, and prints a `Report` as JSON. Real hostile users sit on other machines: what they compute
themselves, e.g. damaged files, must not count as harm. The process ends early when its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gradbus.aio.tasks import cancel_and_wait
from gradbus.client import Client
from gradbus_hostile.attack import Ended, attacked, newest, submit_all
from gradbus_hostile.clients import CLIENTS, HostileClient
from gradbus_hostile.material import Json, Material
from gradbus_hostile.submissions import SUBMISSIONS
from gradbus_hostile.target import Target

NICENESS: Final = 10
_STUCK_SECONDS: Final = 120.0
"""Without any end for so long, the runs that are left are stuck."""
_TURN_SECONDS: Final = 60.0
"""Of a party of clients, at most."""
_SHORTEST_TURN_SECONDS: Final = 5.0
_HOSTILE: Final = {
    "name": "hostile",
    "rollout": {"slots": 16, "group_size": 4, "max_new_tokens": 6},
    "schedule": {"groups_per_step": 4, "steps": 2},
    "checkpoint": {"every": 2},
}
"""In place of the well-behaved run's sections: short, for each run has a trainer while others wait."""
_SOURCES: Final = str(Path(__file__).resolve().parents[1])
_LONGEST_REPORT: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Orders:
    """What the hostile users are to do."""

    state: str
    """Folder of the stack."""
    url: str
    key: str
    """Whose runs are submitted."""
    clients_key: str
    """Another one, for the clients use up what a key may do."""
    spec: Json
    """Of the well-behaved run."""
    submissions: tuple[str, ...]
    """Names in the table."""
    minutes: float
    """At least; the attack ends with a whole table, when every client has had a turn."""
    clients_at_once: int


@dataclass(frozen=True, slots=True)
class Report:
    """What the hostile users did."""

    ends: list[Ended]
    turns: dict[str, int]
    """Of each client."""

    def to_json(self) -> str:
        """The report on one line."""
        ends = [(ended.submission.name, ended.end, ended.cause, ended.seconds) for ended in self.ends]
        return json.dumps({"ends": ends, "turns": self.turns})

    @classmethod
    def from_json(cls, line: bytes) -> Report:
        """The report that `to_json` wrote."""
        found, table = json.loads(line), {submission.name: submission for submission in SUBMISSIONS}
        return cls([Ended(table[name], *rest) for name, *rest in found["ends"]], found["turns"])


async def attack(orders: Orders) -> Report:
    """Attacks from another process. Raises RuntimeError if that process fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gradbus_hostile.attackers"),
        stdin=pipe,
        stdout=pipe,
        cwd=_SOURCES,
        limit=_LONGEST_REPORT,
        start_new_session=True,  # Linux may give each session its own share of the processor: see `_lower_priority`
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(asdict(orders)).encode() + b"\n")
        line = await process.stdout.readline()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    if not line:
        raise RuntimeError("the process of the hostile users failed; its error is above")
    return Report.from_json(line)


def parties(at_once: int) -> list[tuple[HostileClient, ...]]:
    """All clients, in parties of so many or one fewer."""
    count = -(-len(CLIENTS) // at_once)
    return [CLIENTS[first::count] for first in range(count)]


def turn_seconds(orders: Orders) -> float:
    """How long a party attacks: all have had a turn within the minutes, unless those are very few."""
    return min(_TURN_SECONDS, max(_SHORTEST_TURN_SECONDS, 60 * orders.minutes / len(parties(orders.clients_at_once))))


async def _attacked(orders: Orders) -> Report:
    turns: Counter[str] = Counter({client.name: 0 for client in CLIENTS})
    all_tried = asyncio.Event()
    with Client(orders.url, orders.key) as client:
        async with asyncio.TaskGroup() as group:
            clients = group.create_task(_take_turns(orders, client, turns, all_tried))
            ends = await _submit(orders, client)
            await all_tried.wait()
            await cancel_and_wait(clients)
    return Report(ends, dict(turns))


async def _take_turns(orders: Orders, client: Client, turns: Counter[str], all_tried: asyncio.Event) -> None:
    for party in itertools.cycle(parties(orders.clients_at_once)):
        run_id = await asyncio.to_thread(newest, client, orders.spec["name"])
        async with attacked(Target.of(Path(orders.state), orders.clients_key, run_id), party):
            await asyncio.sleep(turn_seconds(orders))
        turns.update(client.name for client in party)
        if all(turns.values()):
            all_tried.set()


async def _submit(orders: Orders, client: Client) -> list[Ended]:
    ends: list[Ended] = []
    table = [submission for submission in SUBMISSIONS if submission.name in orders.submissions]
    deadline = time.monotonic() + 60 * orders.minutes
    with tempfile.TemporaryDirectory(prefix="gradbus-hostile-") as folder:
        for turn in itertools.count():
            material = Material(Path(folder) / str(turn), orders.spec | _HOSTILE)
            ends += await submit_all(client, material, table, _STUCK_SECONDS)
            if time.monotonic() > deadline:
                break
    return ends


def _lower_priority() -> None:
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # kernels that do not group processes by session
        Path("/proc/self/autogroup").write_text(str(NICENESS))


async def main() -> None:
    """Attacks until the orders are carried out, or the input ends."""
    _lower_priority()
    given = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(given), sys.stdin)
    attacking = asyncio.create_task(_attacked(Orders(**json.loads(await given.readline()))))
    gone = asyncio.create_task(given.read())
    await asyncio.wait({attacking, gone}, return_when=asyncio.FIRST_COMPLETED)
    await cancel_and_wait(gone)
    if attacking.done():
        print(attacking.result().to_json(), flush=True)
    await cancel_and_wait(attacking)


if __name__ == "__main__":
    asyncio.run(main())
