"""A bound of what a configuration makes transformers build: a model has no more parameters than its folder has tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from gradbus.errors import ModelError

_UNSTORED: Final = 64
"""Parameters that no folder stores under a name of their own, such as a tied head."""
_REGISTERED: Final = 2
"""How often one is registered at most: once more by what takes its place."""


@contextmanager
def at_most_parameters(stored: int) -> Iterator[None]:
    """Raises ModelError when modules get more parameters than a folder with so many tensors can hold, before all of them are built."""
    room = _REGISTERED * stored + _UNSTORED

    def count(_module: nn.Module, _name: str, _parameter: nn.Parameter) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise ModelError(f"config.json asks for more weights than the {stored} tensors of the folder; take files that belong together")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
