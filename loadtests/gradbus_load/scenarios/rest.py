"""Does REST keep up? Locust submits runs while another run trains: first alone, then with status readers and event followers.

Bounded in number and time, and always against a stack of its own on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gradbus.client import document
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.outcome import Finding, Outcome
from gradbus_load.rig import SOURCES, Bench, Json, LoadError, Rig, rounded

_LOCUSTFILE = Path(__file__).resolve().parents[1] / "locustfile.py"
_TRAINING_STEPS = 1_000_000
_START_SECONDS = 60.0
_NAMES = {"submit": "POST /v1/runs", "status": "GET /v1/runs/{id}", "event": "server-sent event, from its making"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the load on the gateway."""

    submits_a_second: int = 150
    submits: int = 1500
    submitters: int = 50
    reads_a_second: int = 150
    readers: int = 20
    followers: int = 8
    most_seconds: int = 60
    floor_ms: float = 100.0
    engine: EngineTiming = field(default_factory=lambda: EngineTiming(step_seconds=0.002, median_tokens=16.0))
    learner: LearnerTiming = field(default_factory=lambda: LearnerTiming(step_seconds=0.25))

    @property
    def rig(self) -> Rig:
        """The measured stack."""
        return Rig(self.engine, self.learner)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to requests of one kind."""

    name: str
    count: int
    failures: int
    a_second: float
    milliseconds: Mapping[int, int]
    """Response time to number of answers."""

    @classmethod
    def of(cls, row: Json) -> Answers:
        """Parses locust's statistics."""
        seconds = max(1e-9, row["last_request_timestamp"] - row["start_time"])
        times = {int(float(time)): number for time, number in row["response_times"].items()}
        return cls(row["name"], row["num_requests"], row["num_failures"], row["num_requests"] / seconds, dict(sorted(times.items())))

    def percentile(self, share: float) -> int:
        """Quantile `share` of the response times, in milliseconds."""
        left = share * sum(self.milliseconds.values())
        for time, number in self.milliseconds.items():
            left -= number
            if left <= 0:
                return time
        return max(self.milliseconds, default=0)


@dataclass(frozen=True, slots=True)
class Bout:
    """One phase of load."""

    answers: list[Answers]
    spent: dict[str, float]
    """CPU seconds by process during the load."""

    @property
    def submits(self) -> Answers:
        """Answers to submissions."""
        return next(answer for answer in self.answers if answer.name == "submit")

    @property
    def failures(self) -> int:
        """Answers of all kinds."""
        return sum(answer.failures for answer in self.answers)


async def measure(settings: Settings, bench: Bench) -> Outcome:
    """Two phases of load on a stack that trains."""
    run_id = await bench.submit(_training(bench))
    await bench.trains(run_id, _START_SECONDS)
    run = document(await asyncio.to_thread(bench.client.run, run_id))
    plan = {"body": run["spec"] | {"name": "queued"}, "followed": run_id}
    alone = await _bout(bench, replace(settings, readers=0, followers=0), plan | {"name": "alone"})
    mixed = await _bout(bench, settings, plan | {"name": "mixed"})
    steps = (await asyncio.to_thread(bench.client.run, run_id)).progress.step - run["progress"]["step"]
    await asyncio.to_thread(bench.client.cancel, run_id)
    return _outcome(settings, alone, mixed, steps)


def _training(bench: Bench) -> Json:
    return bench.spec(
        "training",
        rollout={"slots": 64, "group_size": 8, "max_new_tokens": 128},
        schedule={"max_staleness": 1, "groups_per_step": 8, "steps": _TRAINING_STEPS},
        algorithm={"filter": "none"},
    )


async def _bout(bench: Bench, settings: Settings, plan: Json) -> Bout:
    spent = bench.material / "cpu_seconds.json"
    newest = document(await asyncio.to_thread(bench.client.events_page, plan["followed"], 0, 1000))["data"][-1]["id"]
    answers = await _locust(bench, asdict(settings) | plan | {"after": newest, "pids": bench.pids(), "spent": str(spent)})
    return Bout(answers, json.loads(spent.read_text()))


async def _locust(bench: Bench, plan: Json) -> list[Answers]:
    """Runs locust in its own process. Raises LoadError with its output when it measured nothing."""
    users = plan["submitters"] + plan["readers"] + plan["followers"]
    command = [sys.executable, "-m", "locust", "--headless", "--json", "--locustfile", str(_LOCUSTFILE), "--host", bench.stack.url]
    command += ["--users", str(users), "--spawn-rate", str(users), "--run-time", f"{plan['most_seconds']}s", "--exit-code-on-error", "0"]
    environment = os.environ | {
        "GRADBUS_LOAD_PLAN": json.dumps(plan),
        "GRADBUS_KEY": bench.stack.api_key,
        "OTEL_SDK_DISABLED": "true",
        "PYTHONPATH": SOURCES,
    }
    locust = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(plan["most_seconds"] + _START_SECONDS):
        output, errors = await locust.communicate()
    rows = json.loads(output) if output.strip().startswith(b"[") else []
    if not rows:
        raise LoadError(f"locust measured nothing; it says:\n{errors.decode()[-2000:]}")
    return [Answers.of(row) for row in rows]


def _outcome(settings: Settings, alone: Bout, mixed: Bout, steps: int) -> Outcome:
    findings = [
        *_submits(settings, alone, "submits alone", settings.floor_ms),
        *_submits(settings, mixed, "submits beside reads and events"),
        Finding("refused or failed", alone.failures + mixed.failures, "requests", 0.0, "less"),
        Finding("steps trained meanwhile", steps, "steps"),
        *(Finding(f"CPU of the second bout: {name}", seconds, "s") for name, seconds in mixed.spent.items()),
    ]
    rows = [
        (*words, one.count, one.failures, f"{one.a_second:.0f}", *(one.percentile(share) for share in (0.5, 0.95, 0.99, 1.0)))
        for words, one in [(("alone", _NAMES["submit"]), alone.submits), *((("beside", _NAMES[one.name]), one) for one in mixed.answers)]
    ]
    header = ("bout", "request", "count", "failed", "per s", "p50 ms", "p95 ms", "p99 ms", "max ms")
    data = {"settings": asdict(settings), "alone": _data(alone), **_data(mixed), "steps": steps}
    return Outcome("rest", findings, header, rows, data, plot)


def _submits(settings: Settings, bout: Bout, words: str, floor_ms: float | None = None) -> list[Finding]:
    return [
        Finding(words, bout.submits.a_second, "per s", 0.97 * settings.submits_a_second),
        Finding(f"{words}: p99", bout.submits.percentile(0.99), "ms", floor_ms, "less"),
    ]


def _data(bout: Bout) -> Json:
    return {"answers": [asdict(one) for one in bout.answers], "cpu_seconds": rounded(bout.spent)}


def plot(data: Any, axes: Any) -> None:
    """Plots the fraction of answers by response time."""
    submits = next(one for one in data["alone"]["answers"] if one["name"] == "submit")
    for label, one in [("POST /v1/runs alone", submits), *((_NAMES[one["name"]], one) for one in data["answers"])]:
        total, shares, seen = sum(one["milliseconds"].values()), [], 0
        for number in one["milliseconds"].values():
            seen += number
            shares.append(seen / total)
        axes.step([int(time) for time in one["milliseconds"]], shares, where="post", label=label)
    axes.axvline(data["settings"]["floor_ms"], color="grey", linestyle="--", label="floor of p99")
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share answered")
    axes.legend(fontsize="small")
