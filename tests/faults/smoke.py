"""The smoke run for fault tests: digits copied from random weights, prompts of mixed length, one hash."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradbus.client import Client, document, load_spec
from gradbus.embedded import Stack

EXAMPLE = Path(__file__).parents[2] / "examples" / "copy"
FINAL = {"succeeded", "failed", "cancelled"}


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run_id: str
    state: str
    digest: str
    """Of the final version's tensors."""
    steps: int
    killed: list[str] = field(default_factory=list)
    deterministic: str | None = None
    """As the run's object says it."""


@dataclass(frozen=True)
class Kills:
    """Who is killed, when."""

    names: Sequence[str]
    draw: random.Random
    after_step: int = 0


def make_example(folder: Path) -> Path:
    """Model and data of the copying task."""
    spec = importlib.util.spec_from_file_location("make_copy", EXAMPLE / "make_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.make(folder)


def smoke_spec(example: Path, **changes: Any) -> dict[str, Any]:
    """A short run: 16 groups of 4 a step, a checkpoint every 10 steps, all checkpoints kept."""
    spec = dict(load_spec(EXAMPLE / "copy.toml"))
    spec["model"] = {"path": str(example / "model")}
    spec["data"] = {"train": str(example / "train.jsonl"), "eval": str(example / "eval.jsonl")}
    spec["rollout"] = spec["rollout"] | {"slots": 32, "group_size": 4}
    spec["schedule"] = {"mode": "fixed_lag", "max_staleness": 1, "groups_per_step": 16, "steps": 60}
    spec["checkpoint"] = {"every": 10, "keep": 100}
    spec["evaluation"] = {"every": 30, "samples": 16, "metric": "exact"}
    for section, values in changes.items():
        spec[section] = spec.get(section, {}) | values if isinstance(values, dict) else values
    return spec


async def train(
    stack: Stack, spec: dict[str, Any], kills: Sequence[str] = (), seed: int = 0, seconds: float = 300.0, after_step: int = 0
) -> Outcome:
    """Runs `spec` to its end, with a SIGKILL to each of `kills` in turn once it is past `after_step`."""
    client = Client(stack.url, stack.api_key)
    run_id = (await asyncio.to_thread(client.submit, spec, EXAMPLE)).id
    reaper = asyncio.create_task(_kill(stack, client, run_id, Kills(kills, random.Random(seed), after_step)))
    try:
        async with asyncio.timeout(seconds):
            run = await until(client, run_id, lambda run: run["state"] in FINAL, seconds)
    finally:
        reaper.cancel()
    killed = (await asyncio.gather(reaper, return_exceptions=True))[0]
    version = document(await asyncio.to_thread(client.versions_page, run_id, spec["schedule"]["steps"] - 1))["data"]
    digest = version[-1]["digest"] if version else ""
    client.close()
    return Outcome(run_id, run["state"], digest, run["progress"]["step"], killed if isinstance(killed, list) else [], run["deterministic"])


async def until(client: Client, run_id: str, condition: Any, seconds: float = 300.0) -> dict[str, Any]:
    """The run, once `condition` holds of it; the gateway may be away meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            run = document(await asyncio.to_thread(client.run, run_id))
            if condition(run):
                return run
        except Exception as error:  # noqa: BLE001 - the gateway may be the one that was killed
            last = error
        await asyncio.sleep(0.2)
    raise TimeoutError(f"run {run_id} is {run['state']}: {run['waiting_for'] or run['reason']} {locals().get('last', '')}")


async def _kill(stack: Stack, client: Client, run_id: str, kills: Kills) -> list[str]:
    killed = []
    if kills.names:
        await until(client, run_id, lambda run: run["progress"]["step"] > kills.after_step or run["state"] in FINAL)
    for name in kills.names:
        await asyncio.sleep(kills.draw.uniform(0.05, 0.5))
        await stack.kill(name)
        killed.append(name)
        await asyncio.sleep(kills.draw.uniform(0.2, 1.0))
    return killed
