"""A run's progress in one line."""

from __future__ import annotations

from datetime import datetime
from typing import Any

_SHARES = {"generate": "gen", "score": "score", "reference": "reference", "wait": "wait", "train": "train", "switch": "switch"}


def number(value: float | None) -> str:
    """The value with three decimals; a dash for an unknown one."""
    return "-" if value is None else f"{value:.3f}"


def progress_line(run: dict[str, Any]) -> str:
    """The figures of a run, after its state unless that is `running`."""
    return figures(run) if run["state"] == "running" else f"{run['state']}  {figures(run)}"


def run_line(run: dict[str, Any]) -> str:
    """A run in a list: id, local time of submission, name, state, step and scores."""
    created = "-" if run["created_at"] is None else datetime.fromisoformat(run["created_at"]).astimezone().strftime("%Y-%m-%d %H:%M")
    progress = run["progress"]
    scores = f"reward {number(progress['reward'])}  held-out {number(progress['accuracy'])}"
    return f"{run['id']}  {created:<16}  {run['name']:<24}  {run['state']:<18}  step {progress['step']}/{run['steps']}  {scores}"


def figures(run: dict[str, Any]) -> str:
    """Step, version, reward, held-out accuracy, staleness, a critic's explained variance, tokens per second, time by phase, workers."""
    progress = run["progress"]
    speed = progress["tokens_per_second"]
    shares = progress["shares"]
    staleness = "-" if progress["staleness"] is None else f"{progress['staleness']:.1f}"
    explained = progress["explained_variance"]
    parts = [
        f"step {progress['step']}/{run['steps']}",
        f"v{progress['version'] if progress['version'] >= 0 else '-'}",
        f"reward {number(progress['reward'])}",
        f"held-out {number(progress['accuracy'])}",
        f"stale {staleness}",
        "" if explained is None else f"explained {explained:.2f}",
        f"{'-' if speed is None else round(speed)} tok/s",
        " ".join(f"{short} {shares[name]:.0%}" for name, short in _SHARES.items() if name in shares),
        f"{progress['workers']} {'worker' if progress['workers'] == 1 else 'workers'}",
    ]
    return "  ".join(part for part in parts if part)
