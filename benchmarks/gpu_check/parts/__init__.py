"""The parts in the order in which they run, each a module with `run(context)`."""

from __future__ import annotations

from typing import Final

from gpu_check.runner import Part

_HERE: Final = __name__

PARTS: Final = (Part("probe", f"{_HERE}.probe", 20.0),)
"""Their deadlines add up to less than ten minutes."""
