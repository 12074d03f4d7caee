"""Measures `--help` of every command: `python loadtests/help_time.py`. The limit is half a second."""

from __future__ import annotations

import subprocess
import sys
import time

ROUNDS = 3
SERVICES = ("gateway", "conductor", "rollout", "reward", "reference", "trainer", "weight_store")
VERBS = ("", "up", "down", "status", "run", "runs", "show", "samples", "events", "pause", "resume", "cancel", "export", "keys")


def seconds(*arguments: str) -> float:
    """Best of a few calls, to leave out other load on the machine."""
    command = [sys.executable, "-m", *arguments, "--help"]
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - began)
    return min(found)


if __name__ == "__main__":
    for name in SERVICES:
        print(f"gradbus_{name:<14} {seconds(f'gradbus_{name}'):.3f} s", flush=True)
    for verb in VERBS:
        print(f"gradbus {verb:<15}{seconds('gradbus.cli', *filter(None, [verb])):.3f} s", flush=True)
