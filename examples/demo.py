"""`make demo`: a language model learns to add two numbers, through the services on this machine.

python examples/demo.py [--seed 0] [--steps 700] [--smoke]
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gradbus.cli.follow import follow_run
from gradbus.client import Client, load_spec
from gradbus.embedded import StackConfig, StateFolder
from gradbus.embedded.supervisor import start_detached
from gradbus.errors import GradbusError
from gradbus.resources.runs import RunResource

EXAMPLES = Path(__file__).resolve().parent
STATE = EXAMPLES.parent / ".gradbus" / "demo"
SHOWN = 3
console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Task:
    """One of the demo's tasks: its spec and its base model."""

    spec: Path
    base: Path
    steps: int
    seed: int

    def body(self) -> dict[str, Any]:
        """The spec of the file with this base model, number of steps and seed."""
        changes = {
            "seed": self.seed,
            "model.path": self.base / "model",
            "data.train": self.base / "train.jsonl",
            "data.eval": self.base / "eval.jsonl",
            "schedule.steps": self.steps,
        }
        return load_spec(self.spec, [f"{name}={value}" for name, value in changes.items()])


def main() -> int:
    """Makes the base model, starts the stack, runs the spec and shows the result. Returns the exit status."""
    parser = argparse.ArgumentParser(description="A language model learns to add two numbers, through the services on this machine.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="optimiser steps (default 700; with --smoke 250)")
    parser.add_argument("--smoke", action="store_true", help="copy digits from random weights instead")
    options = parser.parse_args()
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raises SystemExit, so that the stack is stopped
    try:
        task = copying(options.seed, options.steps or 250) if options.smoke else addition(options.seed, options.steps or 700)
        with stack() as client:
            run, evaluations, export = train(client, task)
    except GradbusError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("\nstopped; the run is cancelled")
        return 130
    if run.state != "succeeded":
        console.print(f"the run is {run.state} {run.reason}; the services' logs are in {STATE / 'logs'}")
        return 1
    report(task, evaluations, export)
    console.print(f"\n[dim]{time.monotonic() - begun:.0f} s in all, seed {options.seed}[/]")
    next_commands(export)
    return 0


def addition(seed: int, steps: int) -> Task:
    """Two-digit addition, from a base model made by a supervised warm-up."""
    from addition.make_model import Settings, make  # noqa: PLC0415 - torch comes after the arguments are parsed

    chapter("0", "A base model that is right about a third of the time: a short supervised warm-up")
    with console.status("reading the cache") as status:

        def show(step: int, accuracy: float, seconds: float) -> None:
            status.update(f"step {step}: {accuracy:.0%} of the held-out sums right, {seconds:.0f} s")

        base = make(STATE / f"addition-{seed}", Settings(seed=seed), show)
    console.print(f"  {base / 'model'}: 86,208 parameters, a character a token")
    console.print("  9,000 sums to learn from; another 1,000, chosen by a hash, it never sees")
    return Task(EXAMPLES / "addition" / "addition.toml", base, steps, seed)


def copying(seed: int, steps: int) -> Task:
    """Copying digits, from random weights."""
    made = runpy.run_path(str(EXAMPLES / "copy" / "make_model.py"))  # the folder has the name of a standard module
    chapter("0", "A model with random weights, to copy four digits")
    base: Path = made["make"](STATE / f"copy-{seed}", made["Settings"](seed=seed))
    console.print(f"  {base / 'model'}")
    return Task(EXAMPLES / "copy" / "copy.toml", base, steps, seed)


@contextmanager
def stack() -> Iterator[Client]:
    """Runs a stack inside the block and yields its client."""
    chapter("1", "The services, a message bus, a buffer and an object store")
    begun = time.monotonic()
    with console.status("starting them"):
        start_detached(StackConfig(STATE, port=0))
    folder = StateFolder(STATE)
    try:
        up = folder.read("stack.json")
        console.print(f"  {', '.join(up['processes'])}: ready after {time.monotonic() - begun:.1f} s")
        console.print(f"  REST at {up['url']}, logs in {folder.logs}")
        with Client.discover(STATE) as client:
            yield client
    finally:
        with console.status("stopping the services"):
            stop(folder)


def stop(folder: StateFolder) -> None:
    """Stops the stack and waits until it has ended."""
    if owner := folder.owner():
        os.kill(owner, signal.SIGTERM)
    while folder.owner():
        time.sleep(0.1)


def train(client: Client, task: Task) -> tuple[RunResource, list[dict[str, Any]], Path]:
    """The finished run, its evaluations, and the folder of the trained model."""
    chapter("2", f"Reinforcement learning: {task.steps} steps of GRPO, 32 prompts a step, 8 answers to each")
    console.print(f"  the same as: gradbus run {shown(task.spec)} --follow")
    for left in client.runs():
        if left.finished_at is None:  # left by an interrupted demo; it would be trained first
            client.cancel(left.id)
    submitted = client.submit(task.body(), task.spec.parent)
    try:
        follow_run(client, submitted.id, None)
    except BaseException:
        client.cancel(submitted.id)
        raise
    run = client.run(submitted.id)
    export = STATE / "export" / run.id
    if run.state == "succeeded":
        client.export(run.id, export)
    evaluations = [event.data for event in client.events(run.id) if event.type == "evaluation"]
    return run, [result for result in evaluations if result.get("accuracy") is not None], export


def report(task: Task, evaluations: list[dict[str, Any]], export: Path) -> None:
    """Shows accuracy and answers before and after training."""
    from answers import held_out_answers  # noqa: PLC0415 - torch again

    chapter("3", "What it has learnt")
    ordered = sorted(evaluations, key=lambda evaluation: evaluation["version"])
    before, after = ordered[0], ordered[-1]
    console.print(f"  held-out accuracy [bold]{before['accuracy']:.0%}[/] before, [bold green]{after['accuracy']:.0%}[/] after")
    console.print("  three held-out prompts that the base model got wrong:", style="dim")
    for prompt, right, old, new in held_out_answers(task.base, export, SHOWN):
        verdict = "[green]right[/]" if new == right else f"[red]wrong[/], it is {right}"
        console.print(f"    {prompt:<9} before {old:<6} after {new:<6} {verdict}")


def next_commands(export: Path) -> None:
    """Shows the next commands."""
    console.print(f"\n  the model: {shown(export)}  (transformers loads it)")
    console.print("\n  next:  [bold]. .venv/bin/activate && gradbus up[/]     the same system, until Ctrl-C")
    console.print("         [bold]gradbus run YOUR.toml --follow[/]           your model, data and reward, in another terminal")
    console.print("         examples/addition/addition.toml shows what such a file says\n")


def chapter(number: str, title: str) -> None:
    """Prints a heading."""
    console.print(f"\n[bold cyan]{number}[/]  [bold]{title}[/]")


def shown(path: Path) -> str:
    """The path, relative if it is below the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
