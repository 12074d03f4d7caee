"""What do waiting runs cost? Ten thousand wait beside a run that trains; most are cancelled, every process is killed, the rest goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.bus import Bucket, Buckets, Bus, BusSettings, View
from gradbus.bus.batch import MOST_MESSAGES
from gradbus.client import document
from gradbus.control.runs import RunRecord, RunState, RunStatus
from gradbus.deploy.credentials import Credentials
from gradbus.errors import StackError
from gradbus.ids import new_run_id
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.outcome import Finding, Outcome
from gradbus_load.processes import cpu_seconds
from gradbus_load.rig import Bench, Json, LoadError, Rig, rounded

_MIB: Final = 1 << 20
_START_SECONDS: Final = 60.0
_LIMIT_SECONDS: Final = 600.0
_LISTS: Final = 50
_WATCHED: Final = ("conductor", "gateway", "nats", "weight_store")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the measurement."""

    waiting: tuple[int, ...] = (10, 1_000, 10_000)
    """Sizes of the queue at which costs are measured."""
    cancelled: int = 5_000
    """Runs that are cancelled beside a run that trains."""
    cancelled_before_kill: int = 4_000
    """Runs that are cancelled right before every process is killed."""
    seconds: float = 10.0
    """How long each cost is measured."""
    floor_seconds: float = 30.0
    floor_restart_seconds: float = 60.0
    floor_list: float = 2.0
    engine: EngineTiming = field(default_factory=lambda: EngineTiming(step_seconds=0.002, median_tokens=16.0))
    learner: LearnerTiming = field(default_factory=lambda: LearnerTiming(step_seconds=0.25))

    @property
    def rig(self) -> Rig:
        """The measured stack."""
        return Rig(self.engine, self.learner)


@dataclass(slots=True)
class Queue:
    """The waiting runs, written to the bucket with the gateway's rights: what submissions cost is the scenario `rest`."""

    bus: Bus
    runs: Bucket
    view: View
    record: RunRecord
    run_ids: list[str] = field(default_factory=list)
    states: dict[str, RunState] = field(default_factory=dict)
    """Of the runs that have a status."""

    def __post_init__(self) -> None:
        self.view.listen(self._update)

    async def grow(self, size: int) -> None:
        """Submits runs until `size` wait."""
        added = [f"{new_run_id()}-{number:05}" for number in range(len(self.run_ids), size)]
        await self._write({f"{run_id}.spec": self.record.model_copy(update={"run_id": run_id}).to_bytes() for run_id in added})
        self.run_ids += added

    async def cancel(self, run_ids: Sequence[str]) -> None:
        """Requests that the runs are cancelled."""
        await self._write({f"{run_id}.desired": b'"cancelled"' for run_id in run_ids})

    async def are(self, run_ids: Collection[str], state: RunState) -> float:
        """Seconds until all the runs are in a state. Raises LoadError after ten minutes."""
        began = time.monotonic()
        while left := [run_id for run_id in run_ids if self.states.get(run_id, "queued") != state]:
            if time.monotonic() - began > _LIMIT_SECONDS:
                raise LoadError(f"{len(left)} runs are not {state} after {_LIMIT_SECONDS:.0f} s, e.g. {left[0]}")
            await asyncio.sleep(0.1)
        return time.monotonic() - began

    def _update(self, key: str) -> None:
        if value := self.view.get(key):
            self.states[key.removesuffix(".status")] = RunStatus.model_validate_json(value).state

    async def _write(self, entries: dict[str, bytes]) -> None:
        writes = [self.runs.creation(key, value) for key, value in entries.items()]
        for first in range(0, len(writes), MOST_MESSAGES):
            await self.bus.publish_batch(writes[first : first + MOST_MESSAGES])


async def measure(settings: Settings, bench: Bench) -> Outcome:
    """Costs by size of the queue; then cancellations, beside a run that trains and across a kill of every process."""
    training = await bench.submit(_training(bench))
    await bench.trains(training, _START_SECONDS)
    run = document(await asyncio.to_thread(bench.client.run, training))
    async with _queue(bench, RunRecord(run_id="", spec=run["spec"], created_unix_ns=time.time_ns())) as queue:
        costs = []
        for size in settings.waiting:
            await queue.grow(size)
            costs.append(await _cost(settings, bench, size))
        seconds, steps = await _cancelled(queue, bench, training, settings)
        restart = await _killed(queue, bench, settings)
        await queue.are(queue.run_ids[: -settings.cancelled - settings.cancelled_before_kill], "queued")
    return _outcome(settings, costs, {"cancelled": seconds, "restarted": restart, **steps})


def _training(bench: Bench) -> Json:
    return bench.spec(
        "training",
        rollout={"slots": 64, "group_size": 8, "max_new_tokens": 128},
        schedule={"max_staleness": 1, "groups_per_step": 8, "steps": 1_000_000},
        algorithm={"filter": "none"},
    )


@asynccontextmanager
async def _queue(bench: Bench, record: RunRecord) -> AsyncIterator[Queue]:
    state, credentials = bench.stack.state, Credentials(bench.stack.state.secrets)
    url = f"nats://127.0.0.1:{state.read('ports.json')['nats']}"
    bus = await Bus.connect(BusSettings(url, "gateway", credentials.nats_password("gateway")), "load test")
    try:
        runs = await bus.bucket(Buckets.RUNS)
        async with runs.view("*.status") as view:
            yield Queue(bus, runs, view, record)
    finally:
        await bus.close()


async def _cost(settings: Settings, bench: Bench, size: int) -> Json:
    """CPU seconds a second and memory by process, and the time of a page of the list."""
    before = bench.usage()
    await asyncio.sleep(settings.seconds)
    after = bench.usage()
    spent = {name: seconds / settings.seconds for name, seconds in cpu_seconds(before, after).items()}
    times = []
    for _ in range(_LISTS):
        began = time.perf_counter()
        await asyncio.to_thread(bench.client.runs_page, limit=20)
        times.append(time.perf_counter() - began)
    memory = {name: usage.rss_bytes / _MIB for name, usage in after.items()}
    return {"waiting": size, "cpu": rounded(spent), "mib": rounded(memory, 1), "list_ms": round(1000 * statistics.median(times), 2)}


async def _cancelled(queue: Queue, bench: Bench, training: str, settings: Settings) -> tuple[float, dict[str, float]]:
    """Seconds from the last request to the last end, and the steps a second of the training run before and meanwhile."""
    alone = await _rate(bench, training, settings.seconds)
    leaving = queue.run_ids[-settings.cancelled :]
    before, began = await _step(bench, training), time.monotonic()
    await queue.cancel(leaving)
    seconds = await queue.are(leaving, "cancelled")
    meanwhile = (await _step(bench, training) - before) / (time.monotonic() - began)
    return seconds, {"steps_before": alone, "steps_meanwhile": meanwhile}


async def _killed(queue: Queue, bench: Bench, settings: Settings) -> float:
    """Seconds from the kill of every process until each cancelled run has ended, and the API answers."""
    leaving = queue.run_ids[-settings.cancelled - settings.cancelled_before_kill : -settings.cancelled]
    await queue.cancel(leaving)
    for pid in bench.pids().values():
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    await queue.are(leaving, "cancelled")
    while True:
        try:
            await asyncio.to_thread(bench.client.runs_page)
            return time.monotonic() - began
        except (StackError, NatsError, APIError):
            await asyncio.sleep(0.2)


async def _step(bench: Bench, run_id: str) -> int:
    return (await asyncio.to_thread(bench.client.run, run_id)).progress.step


async def _rate(bench: Bench, run_id: str, seconds: float) -> float:
    before = await _step(bench, run_id)
    await asyncio.sleep(seconds)
    return (await _step(bench, run_id) - before) / seconds


def _outcome(settings: Settings, costs: list[Json], measured: dict[str, float]) -> Outcome:
    first, last = costs[0], costs[-1]
    grown = last["waiting"] - first["waiting"]
    findings = [
        Finding(f"{settings.cancelled:,} cancelled runs end in", measured["cancelled"], "s", settings.floor_seconds, "less"),
        Finding("steps of the training run before", measured["steps_before"], "per s"),
        Finding("steps of the training run meanwhile", measured["steps_meanwhile"], "per s"),
        Finding("after a kill of every process", measured["restarted"], "s", settings.floor_restart_seconds, "less"),
        Finding(
            f"list at {last['waiting']:,} / at {first['waiting']:,}", last["list_ms"] / first["list_ms"], "", settings.floor_list, "less"
        ),
        *(Finding(f"memory a run: {name}", 1024 * (last["mib"][name] - first["mib"][name]) / grown, "KiB") for name in _WATCHED),
    ]
    header = ("waiting", *(f"CPU {name}" for name in _WATCHED), *(f"MiB {name}" for name in _WATCHED), "list ms")
    rows = [
        (
            one["waiting"],
            *(f"{one['cpu'][name]:.1%}" for name in _WATCHED),
            *(f"{one['mib'][name]:.0f}" for name in _WATCHED),
            one["list_ms"],
        )
        for one in costs
    ]
    return Outcome("queue", findings, header, rows, {"settings": asdict(settings), "costs": costs, **measured}, plot)


def plot(data: Any, axes: Any) -> None:
    """CPU by the number of runs that wait."""
    sizes = [one["waiting"] for one in data["costs"]]
    for name in _WATCHED:
        axes.plot(sizes, [100 * one["cpu"][name] for one in data["costs"]], marker="o", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("runs that wait")
    axes.set_ylabel("CPU, % of a core")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
