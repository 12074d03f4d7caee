"""What do workers cost? Ten to a thousand rollout workers and one to 64 runs on the real services; only engines and learners are stubs.

At each number of workers and runs: CPU and memory of each service, heartbeats, the time from a version's publication until each worker
of its run holds it, and the time until the conductor counts the workers of a killed process no more.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy

from gradbus.bus import Buckets, Bus, View
from gradbus.control.runs import RunStatus
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_load.calibration import LearnerTiming
from gradbus_load.outcome import Finding, Outcome, percentile
from gradbus_load.processes import cpu_seconds, slow_syncs, syncs_per_second
from gradbus_load.rig import Bench, Json, LoadError, rounded
from gradbus_load.stub_workers.rig import WorkersRig, held_folder

_MIB: Final = 1 << 20
_SERVICES: Final = ("conductor", "gateway", "nats", "weight_store", "buffer")
_SYNCED: Final = (Buckets.RUNS, Buckets.LEASES, Buckets.HEADS, Buckets.ASSIGNMENTS)
"""Buckets whose writes wait for the disk."""
_LIMIT_SECONDS: Final = 180.0
_POLL_SECONDS: Final = 0.05
_STEPS: Final = 1_000_000


class Point(NamedTuple):
    """A number of rollout workers, and of runs that share them."""

    workers: int
    runs: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the measurement."""

    points: tuple[tuple[int, int], ...] = ((10, 1), (100, 1), (1000, 1), (1000, 8), (1000, 64))
    """Each a `Point`."""
    seconds: float = 20.0
    """How long each cost is measured."""
    settle_seconds: float = 5.0
    """Before that, once every worker serves."""
    syncs_seconds: float = 10.0
    """After that, how long syncs are counted, which costs more than they do."""
    rig: WorkersRig = field(default_factory=lambda: WorkersRig(learner=LearnerTiming(step_seconds=4.0)))
    sync_delay_seconds: float = 0.0
    """Of each of NATS's syncs, as if the disk were slower."""
    floor_cores: float = 0.5
    floor_mib: float = 500.0
    floor_death_seconds: float = 10.0
    floor_version_seconds: float = 2.0
    floor_growth: float = 1.5
    """Of what a worker adds, from the second size to the third over from the first to the second."""


@dataclass(slots=True)
class Versions:
    """When each version was published, by the clock of NATS, and when each worker held it."""

    published: dict[tuple[str, int], float] = field(default_factory=dict)

    async def take(self, message: Msg) -> None:
        """A version's head came."""
        manifest = WeightManifest.FromString(message.data)
        # A restarted trainer has the head written again.
        self.published.setdefault((manifest.run_id, manifest.step), message.metadata.timestamp.timestamp())

    def delays(self, folder: Path, since: float, until: float) -> tuple[list[list[float]], list[list[float]]]:
        """Of each version published in that time, the sorted seconds after which its workers were told of it, and held it.

        Its workers are those that had the run when it was published: who joins later is told then.
        """
        told: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        held: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for file in folder.iterdir():
            for line in file.read_text().splitlines():
                run_id, step, joined_at, told_at, held_at = line.split()
                if float(joined_at) <= self.published.get((run_id, int(step)), 0.0):
                    told[run_id, int(step)].append(float(told_at))
                    held[run_id, int(step)].append(float(held_at))
        chosen = [(version, begin) for version, begin in self.published.items() if since <= begin <= until and held[version]]
        told_after, held_after = [[sorted(at - begin for at in times[version]) for version, begin in chosen] for times in (told, held)]
        return told_after, held_after


async def measure(settings: Settings, bench: Bench) -> Outcome:
    """Measures at one point after the other."""
    found = []
    async with bench.clients() as (bus, _):
        runs = await bus.bucket(Buckets.RUNS)
        async with runs.view("*.status") as statuses, _versions(bus) as versions:
            for point in settings.points:
                measured = await _Measurement(settings, bench, bus, statuses, versions).at(Point(*point))
                found.append(measured)
    return _outcome(settings, found)


@asynccontextmanager
async def _versions(bus: Bus) -> AsyncIterator[Versions]:
    seen, prefix = Versions(), f"$KV.{Buckets.HEADS}"
    subscription = await bus.jetstream.subscribe(
        f"{prefix}.*.version", stream=f"KV_{Buckets.HEADS}", cb=seen.take, ordered_consumer=True, deliver_policy=DeliverPolicy.NEW
    )
    try:
        yield seen
    finally:
        await subscription.unsubscribe()


@dataclass(frozen=True, slots=True)
class _Measurement:
    settings: Settings
    bench: Bench
    bus: Bus
    statuses: View
    versions: Versions

    async def at(self, point: Point) -> Json:
        """Everything at one number of workers and runs."""
        settings, bench = self.settings, self.bench
        await settings.rig.resize(bench.stack, point.workers, point.runs)
        run_ids = [await bench.submit(_spec(bench, number)) for number in range(point.runs)]
        assigned = await self._until_serving(run_ids, point.workers)
        found: Json = point._asdict() | {"assigned_seconds": assigned}
        async with self._disk():
            await asyncio.sleep(settings.settle_seconds)
            found |= await self._costs()
            found["list_ms"] = await self._list_ms()
            found |= await self._deaths(run_ids, point.workers)
        for run_id in run_ids:
            await asyncio.to_thread(bench.client.cancel, run_id)
        await self._until(lambda: all(self._status(run_id).state == "cancelled" for run_id in run_ids), "the end of the runs")
        return found

    @asynccontextmanager
    async def _disk(self) -> AsyncIterator[None]:
        """The disk that is measured: this machine's, or a slower one."""
        delay = self.settings.sync_delay_seconds
        async with slow_syncs(self.bench.pids()["nats"], delay) if delay else nullcontext():
            yield

    async def _deaths(self, run_ids: Sequence[str], workers: int) -> Json:
        """Seconds from the death of a quarter of the workers until none of them is counted, and until all others have a run."""
        left, began = workers - await self.settings.rig.lose(self.bench.stack), time.monotonic()
        await self._until(lambda: self._serving(run_ids) <= left, f"the death of all but {left} workers")
        noticed = time.monotonic() - began
        # Workers that change their run because there are fewer now serve none meanwhile.
        await self._until_serving(run_ids, left)
        return {"death_seconds": noticed, "shared_seconds": time.monotonic() - began}

    async def _costs(self) -> Json:
        """CPU seconds a second and memory of each process, heartbeats a second, and the delays of versions."""
        bench, settings = self.bench, self.settings
        before, written, began = bench.usage(), await self._written(), time.time()
        await asyncio.sleep(settings.seconds)
        ended = time.time()
        after = bench.usage()
        writes = {name: (count - written[name]) / (ended - began) for name, count in (await self._written()).items()}
        spent = {name: taken / (ended - began) for name, taken in cpu_seconds(before, after).items()}
        # What was published in the last seconds may still be on its way.
        until = ended - settings.floor_version_seconds
        told, held = self.versions.delays(held_folder(bench.stack.state.root), began, until)
        return {
            "cores": rounded({name: spent[name] for name in _SERVICES}, 4),
            "workers_cores": round(sum(taken for name, taken in spent.items() if name.startswith("rollout-")), 3),
            "trainers_cores": round(spent["trainer-0"], 3),
            "mib": rounded({name: after[name].rss_bytes / _MIB for name in _SERVICES}, 1),
            "beats_per_second": round(writes.pop(Buckets.WORKERS), 1),
            "writes_per_second": rounded(writes, 1),
            "syncs_per_second": None
            if settings.sync_delay_seconds
            else await syncs_per_second(bench.pids()["nats"], settings.syncs_seconds),
            "versions": len(held),
            "holders_per_version": statistics.median(map(len, held)) if held else 0,
            "told_seconds": _spread(told),
            "held_seconds": _spread(held),
        }

    async def _written(self) -> dict[str, int]:
        """How often each bucket has been written."""
        infos = {name: await self.bus.jetstream.stream_info(f"KV_{name}") for name in (Buckets.WORKERS, *_SYNCED)}
        return {name: info.state.last_seq for name, info in infos.items()}

    async def _list_ms(self) -> float:
        """Milliseconds of the list of the first workers."""
        began = time.perf_counter()
        await asyncio.to_thread(lambda: list(self.bench.client.workers()))
        return round(1000 * (time.perf_counter() - began), 1)

    async def _until_serving(self, run_ids: Sequence[str], workers: int) -> float:
        """Seconds until every run has a trainer and the conductor counts so many rollout workers of the runs."""

        def serve() -> bool:
            return self._serving(run_ids) == workers and all(self._status(run_id).state == "running" for run_id in run_ids)

        return await self._until(serve, f"{workers} workers at {len(run_ids)} runs that train")

    def _serving(self, run_ids: Sequence[str]) -> int:
        """Rollout workers that the conductor counts."""
        return sum(self._status(run_id).progress.workers for run_id in run_ids)

    async def _until(self, condition: Callable[[], bool], what: str) -> float:
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > _LIMIT_SECONDS:
                raise LoadError(f"the conductor did not show {what} within {_LIMIT_SECONDS:.0f} s; see its log")
            await asyncio.sleep(_POLL_SECONDS)
        return time.monotonic() - began

    def _status(self, run_id: str) -> RunStatus:
        value = self.statuses.get(f"{run_id}.status")
        return RunStatus.model_validate_json(value) if value else RunStatus(state="queued")


def _spread(delays: Sequence[Sequence[float]]) -> dict[str, float]:
    """The median worker's delay, and the slowest's of any version."""
    every = sorted(delay for one in delays for delay in one)
    return rounded({"p50": percentile(every, 0.5), "p99": percentile(every, 0.99), "last": percentile(every, 1.0)})


def _spec(bench: Bench, number: int) -> Json:
    return bench.spec(
        f"workers-{number}",
        rollout={"slots": 8, "group_size": 4, "max_new_tokens": 4},
        schedule={"mode": "free", "max_staleness": 1, "groups_per_step": 8, "steps": _STEPS},
        algorithm={"filter": "none"},
    )


def _marginal(found: Sequence[Json], service: str) -> list[float]:
    """What one more worker adds to a service, in milliseconds of CPU a second, between neighbouring sizes with one run."""
    single = [one for one in found if one["runs"] == 1]
    return [
        1000 * (more["cores"][service] - less["cores"][service]) / (more["workers"] - less["workers"]) for less, more in pairwise(single)
    ]


def _outcome(settings: Settings, found: list[Json]) -> Outcome:
    largest = max(found, key=lambda one: (one["workers"], -one["runs"]))
    words = f"at {largest['workers']:,} workers"
    grown = {name: _marginal(found, name) for name in _SERVICES}
    told, held = (max(one[what]["last"] for one in found) for what in ("told_seconds", "held_seconds"))
    findings = [
        Finding(f"conductor {words}", largest["cores"]["conductor"], "cores", settings.floor_cores, "less"),
        Finding(f"conductor {words}, memory", largest["mib"]["conductor"], "MiB", settings.floor_mib, "less"),
        Finding("a death is noticed, slowest", max(one["death_seconds"] for one in found), "s", settings.floor_death_seconds, "less"),
        Finding("all workers are told of a version, slowest", told, "s", settings.floor_version_seconds, "less"),
        Finding("all workers hold it, slowest", held, "s"),
        *(_growth(settings, name, added) for name, added in grown.items() if len(added) > 1),
        *(Finding(f"a worker adds to {name}", added[-1], "ms of CPU a s") for name, added in grown.items() if added),
    ]
    columns = (*(f"{name} cores" for name in _SERVICES), *(f"{name} MiB" for name in _SERVICES))
    written = (f"{name} writes/s" for name in _SYNCED)
    header = (
        "workers",
        "runs",
        *columns,
        "beats/s",
        *written,
        "nats syncs/s",
        "told p50 s",
        "told last s",
        "held last s",
        "death s",
        "shared s",
        "all assigned s",
        "list ms",
    )
    return Outcome("workers", findings, header, [_row(one) for one in found], {"settings": asdict(settings), "points": found}, plot)


def _growth(settings: Settings, name: str, added: Sequence[float]) -> Finding:
    """A service that takes less than a thousandth of a core for a hundred workers takes nothing that could grow."""
    growth = max(0.01, added[-1]) / max(0.01, added[0])
    return Finding(f"{name}: what the last workers add, over the first", growth, "", settings.floor_growth, "less")


def _row(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        one["workers"],
        one["runs"],
        *(f"{one['cores'][name]:.3f}" for name in _SERVICES),
        *(f"{one['mib'][name]:.0f}" for name in _SERVICES),
        f"{one['beats_per_second']:.0f}",
        *(f"{one['writes_per_second'][name]:.1f}" for name in _SYNCED),
        "" if one["syncs_per_second"] is None else f"{one['syncs_per_second']:.0f}",
        f"{one['told_seconds']['p50']:.2f}",
        f"{one['told_seconds']['last']:.2f}",
        f"{one['held_seconds']['last']:.2f}",
        f"{one['death_seconds']:.1f}",
        f"{one['shared_seconds']:.1f}",
        f"{one['assigned_seconds']:.1f}",
        one["list_ms"],
    )


def plot(data: Any, axes: Any) -> None:
    """CPU of the services by the number of workers, with one run."""
    single = [one for one in data["points"] if one["runs"] == 1]
    for name in _SERVICES:
        axes.plot([one["workers"] for one in single], [one["cores"][name] for one in single], marker="o", label=name)
    if single:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel("rollout workers")
    axes.set_ylabel("cores")
    axes.legend(fontsize="small")
