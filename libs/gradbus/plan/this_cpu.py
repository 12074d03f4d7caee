"""This machine as a card: the cores of its CPU, as a process of its own has just measured one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final

from gradbus.errors import SettingsError
from gradbus.plan.cards import ON_CPU, Card, Speeds

_PROGRAM: Final = "gradbus_kernels.cpu_speed"
_LAYER_OPERATORS: Final = 30
"""Of the embedded engine in a decode step, for each layer."""
_AS_A_SERVICE: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""One thread, and memory that is freed stays with the process: see `gradbus.memory.allocator`."""
_SECONDS: Final = 120.0
Rates = Mapping[str, Any]
"""Numbers, or numbers by dtype: see `gradbus_kernels.cpu_speed.measure`."""


def this_cpu(width: int) -> Card:
    """The card for a model whose hidden states have `width` elements. Raises SettingsError; see `measured_rates`."""
    return card_of_rates(measured_rates(width))


def measured_rates(width: int) -> Rates:
    """What `gradbus_kernels.cpu_speed` finds; takes about five seconds, and two to import torch.

    Raises SettingsError where torch is not installed, or the measurement fails.
    """
    if find_spec("torch") is None:
        raise SettingsError("measuring this machine needs torch; install gradbus with the extra `trainer`, or name a card by --gpu")
    command = [sys.executable, "-m", _PROGRAM, str(width)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **_AS_A_SERVICE}, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise SettingsError(f"this machine took more than {_SECONDS:.0f} s to be measured; try again when it has less to do") from error
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
        raise SettingsError(f"this machine could not be measured ({reason}); name a card by --gpu")
    rates: Rates = json.loads(done.stdout.splitlines()[-1])
    return rates


def card_of_rates(rates: Rates) -> Card:
    """This machine, with cores of these rates."""
    products = rates["training"]
    speeds = Speeds(
        products=products,
        logits=dict.fromkeys(products, products["fp32"]),
        paired=rates["paired"],
        prompts=products,
        decoded=rates["decode"],
        kept=rates["kept"],
        attended=rates["attended"],
        read=rates["read"],
        drawn=rates["drawn"],
        fresh=rates["fresh"],
        layer=_LAYER_OPERATORS * rates["operator"],
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    process = replace(ON_CPU, widens=bool(rates["widened"]))
    return Card("cpu", _memory(), cores * products["bf16"], rates["copied"], speeds, process, cores)


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
