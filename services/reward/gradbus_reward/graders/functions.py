"""Reward functions in Python: of a spec's source in bare interpreters, of installed modules in processes that import these first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gradbus.errors import GraderError
from gradbus.sandbox.budget import ProcessBudget
from gradbus.spec import PythonGrader
from gradbus_reward.graders.confined import ConfinedParts
from gradbus_reward.sandbox.pool import GraderPool, PoolSettings
from gradbus_reward.sandbox.process import PYTHON, importing


def function_parts(
    parts: Mapping[str, PythonGrader], settings: PoolSettings, budget: ProcessBudget, modules: Collection[str]
) -> Iterator[ConfinedParts]:
    """What grades the parts. `modules`: those that the operator has named. Raises GraderError for another one."""
    sources = {name: part for name, part in parts.items() if part.module is None}
    installed = {name: part for name, part in parts.items() if part.module is not None}
    if sources:
        prompts = any(part.interface != "gradbus" for part in sources.values())
        yield ConfinedParts(tuple(sources), GraderPool(_described(sources), settings, budget, PYTHON), prompts=prompts)
    if installed:
        names = sorted({(part.module or "").partition(":")[0] for part in installed.values()})
        if unknown := [name for name in names if name not in modules]:
            known = ", ".join(sorted(modules)) or "none"
            raise GraderError(f"the operator names no module {unknown[0]} in GRADBUS_REWARD_MODULES; known: {known}")
        pool = GraderPool(_described(installed), settings, budget, importing("gradbus_reward.sandbox.installed", names))
        yield ConfinedParts(tuple(installed), pool, prompts=True)


def _described(parts: Mapping[str, PythonGrader]) -> dict[str, dict[str, Any]]:
    """What the process is told of each part: see `sandbox/child.py`."""
    return {
        name: {
            "source": part.source or "",
            "module": part.module,
            "interface": part.interface,
            "function": part.function_name,
            "label": part.label,
        }
        for name, part in parts.items()
    }
