"""The parts in the order in which they run, each a module with `run(context)`."""

from __future__ import annotations

from typing import Final

from gpu_check.runner import Part

_HERE: Final = __name__

_INTERPRETED: Final = {"TRITON_INTERPRET": "1"}

PARTS: Final = (
    Part("probe", f"{_HERE}.probe", 20.0, needed=True),
    Part("operators", f"{_HERE}.operators", 110.0, _INTERPRETED),
    Part("decoder", f"{_HERE}.decoder", 90.0),
    Part("trainer", f"{_HERE}.trainer", 70.0),
    Part("engine", f"{_HERE}.engine", 70.0),
    Part("weights", f"{_HERE}.weights", 80.0),
    Part("two_processes", f"{_HERE}.two_processes", 40.0),
    Part("deepspeed", f"{_HERE}.deepspeed_rank", 50.0),
    Part("stack", f"{_HERE}.stack", 80.0),
    Part("placement", f"{_HERE}.placement", 60.0),
    Part("sglang", f"{_HERE}.sglang", 120.0),
)
"""The whole run ends after ten minutes (`Options.seconds`); most parts take half of their deadline."""
