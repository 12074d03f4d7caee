"""Runs of the demos of environments: trained, watched and shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from demo import STATE, console, shown

from gradbus.client import Client, document
from gradbus.errors import GradbusError

SHOWN: Final = 2
Json = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A run that is over, and what it measured."""

    run: Json
    curve: list[tuple[int, float]]
    """(version, share of the held-out rows that greedy decoding answers exactly)."""
    seconds: float


def train(client: Client, spec: Path, given: Json, watch: Callable[[Json], None] = lambda _: None) -> Trained:
    """The run of a spec's file, once it has succeeded; `watch` sees it twice a second. Raises GradbusError if it does not succeed."""
    begun = time.monotonic()
    run_id = client.submit(given, spec.parent).id
    try:
        with console.status("training") as status:
            while (run := document(client.run(run_id)))["finished_at"] is None:
                status.update(f"step {run['progress']['step']} of {run['steps']}")
                watch(run)
                time.sleep(0.5)
    except BaseException:
        client.cancel(run_id)
        raise
    if run["state"] != "succeeded":
        raise GradbusError(f"the run {run_id} is {run['state']}: {run['reason']}; the services' logs are in {STATE / 'logs'}")
    seconds = time.monotonic() - begun
    console.print(f"  {run['steps']} steps of {shown(spec)} in {seconds:.0f} s")
    evaluations = [event.data for event in client.events(run_id) if event.type == "evaluation"]
    curve = sorted((one["version"], one["accuracy"]) for one in evaluations if one.get("accuracy") is not None)
    return Trained(run, curve, seconds)


def cancel_left(client: Client) -> None:
    """Cancels the runs that an interrupted demo left, which would be trained first."""
    for left in client.runs():
        if left.finished_at is None:
            client.cancel(left.id)


def show_curve(curve: list[tuple[int, float]]) -> None:
    """A bar for each evaluation."""
    console.print("\n".join(f"  step {version:>4}  {bar(share)}" for version, share in curve))


def show_episodes(client: Client, run: Json) -> None:
    """The first episodes of the last step as conversations."""
    page = document(client.samples_page(run["id"], step=run["steps"] - 1, limit=8 * SHOWN))
    for sample in page["data"][::8]:
        console.print(f"\n  [bold]{sample['prompt']}[/]")
        for turn in sample["episode"]["turns"]:
            for call in turn["calls"]:
                console.print(f"    model  calls {call['name']} {call['arguments']}", markup=False)
            if turn["text"]:
                console.print(f"    model  {turn['text']}", markup=False)
            for message in turn["messages"]:
                console.print(f"    {message['role']:<5}  {message['content']}", markup=False)
        verdict = "right" if sample["components"].get("exact") else "wrong"
        console.print(f"    {verdict}, reward {sample['reward']:.2f}", style="dim")


def bar(share: float) -> str:
    """A share as a bar of 40 characters."""
    return f"{'█' * round(40 * share):<40} {share:.1%}"
