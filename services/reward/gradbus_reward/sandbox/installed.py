"""The process that runs reward functions of modules that the operator has installed and named. `child.py` says what a row is."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

from gradbus.sandbox.bounds import MAX_REASON
from gradbus.sandbox.child import confined_pipes
from gradbus_reward.sandbox.child import Function, grade_row
from gradbus_reward.sandbox.rows import GradeRow, serve

MEMORY_BYTES = 8 << 30
"""Of address space: a module may import torch."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main(names: Sequence[str]) -> None:
    """Serves the parent until it closes the pipe. The modules are imported before the process is confined."""
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))  # a process with threads cannot be confined
    modules: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            modules[name] = importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module may raise anything; it becomes the fault of its part
            failed[name] = f"{type(error).__name__}: {error}"[:MAX_REASON]
    if pipes := confined_pipes([folder for folder in sys.path if folder], MEMORY_BYTES):
        serve(pipes, partial(_loaded, modules, failed))


def _loaded(modules: Mapping[str, Any], failed: Mapping[str, str], sources: Mapping[str, Any]) -> tuple[GradeRow, dict[str, str]]:
    functions: dict[str, Function] = {}
    faults: dict[str, str] = {}
    for part, source in sources.items():
        name, _, path = source["module"].partition(":")
        if name in failed:
            faults[part] = f"the module {name} cannot be imported where the reward service runs: {failed[name]}"
            continue
        try:
            function = reduce(getattr, path.split("."), modules[name])
        except AttributeError:
            faults[part] = f"the module {name} has no {path}"
            continue
        functions[part] = Function(function, source["interface"], source["label"])
    return partial(grade_row, functions), faults
