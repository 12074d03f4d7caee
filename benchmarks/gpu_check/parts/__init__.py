"""The parts in the order in which they run, each a module with `run(context)`."""

from __future__ import annotations

from typing import Final

from gpu_check.runner import Part

_HERE: Final = __name__

_INTERPRETED: Final = {"TRITON_INTERPRET": "1"}

PARTS: Final = (
    Part("probe", f"{_HERE}.probe", 20.0),
    Part("operators", f"{_HERE}.operators", 110.0, _INTERPRETED),
    Part("decoder", f"{_HERE}.decoder", 50.0),
    Part("trainer", f"{_HERE}.trainer", 90.0),
    Part("engine", f"{_HERE}.engine", 70.0),
)
"""Their deadlines add up to less than ten minutes."""
