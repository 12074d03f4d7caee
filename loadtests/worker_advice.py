"""Compares what `gradbus advise` says of more rollouts with runs that have them: `python loadtests/worker_advice.py [--rollouts 1 2 3 4]`.

The services are real, and engine and learner are stubs whose work takes a calibrated time, so that each worker is as fast as on a device
of its own. The advice is asked for while the run with fewest rollouts goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradbus.cli.specs.advise import observe
from gradbus.plan.loop import advise, times_of
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.rig import Bench, Rig, running

WARM_UP = 6
STEPS = 40
ENGINE = EngineTiming(step_seconds=0.002, median_tokens=38.0)
LEARNER = LearnerTiming(step_seconds=0.5)
GROUPS, GROUP_SIZE, SLOTS, TOKENS = 24, 8, 16, 380
Mode = Literal["fixed_lag", "free"]


@dataclass(frozen=True, slots=True)
class Run:
    """Of so many rollouts."""

    seconds: float
    """Of a step."""
    advised: dict[int, float]
    """Seconds of a step by number of rollouts, as the run itself lets expect."""


async def measure(bench: Bench, mode: Mode, rollouts: int) -> Run:
    """Trains a run and asks for advice half-way."""
    run_id = await bench.submit(
        bench.spec(
            f"advised-{mode.replace('_', '-')}-{rollouts}",
            rollout={"slots": SLOTS, "group_size": GROUP_SIZE, "max_new_tokens": TOKENS},
            schedule={"mode": mode, "max_staleness": 1, "groups_per_step": GROUPS, "steps": STEPS},
            checkpoint={"every": STEPS},
            algorithm={"filter": "none"},
        )
    )
    run = await bench.trains(run_id, 60.0 * STEPS, STEPS // 2)
    loop, pace = await asyncio.to_thread(observe, bench.client, run)
    advised = {one.workers: one.step for one in advise(loop, times_of(loop, pace))}
    await bench.ends(run_id, 60.0 * STEPS)
    steps = await bench.steps(run_id)
    return Run((steps[-1]["at"] - steps[WARM_UP]["at"]) / (len(steps) - 1 - WARM_UP), advised)


async def compare(mode: Mode, counts: list[int]) -> list[dict[str, Any]]:
    """A row for each number of rollouts; the advice is that of the run with one fewer, and that of the first run."""
    runs: dict[int, Run] = {}
    for rollouts in counts:
        with tempfile.TemporaryDirectory() as folder:
            async with running(Path(folder), Rig(ENGINE, LEARNER, rollouts)) as bench:
                runs[rollouts] = await measure(bench, mode, rollouts)
    first = runs[counts[0]]
    return [
        {
            "schedule": mode,
            "rollouts": rollouts,
            "measured": run.seconds,
            "advised by the first run": first.advised.get(rollouts),
            "advised by the run before": runs[rollouts - 1].advised.get(rollouts) if rollouts - 1 in runs else None,
        }
        for rollouts, run in runs.items()
    ]


def main() -> None:
    """Prints a line of JSON for each run; seconds of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--modes", nargs="+", default=["fixed_lag", "free"])
    options = parser.parse_args()
    for mode in options.modes:
        for row in asyncio.run(compare(mode, options.rollouts)):
            print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
