"""Which implementation of an operator runs: by the device of its tensors, unless one is asked for; and which one did."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, Literal, cast, get_args

import torch

Implementation = Literal["reference", "cpu", "triton"]
VARIABLE: Final = "GRADBUS_KERNELS"
"""An environment variable that asks for one implementation in the whole process."""

_requested: ContextVar[Implementation | None] = ContextVar("gradbus_kernels_implementation", default=None)
_ran: dict[str, Ran] = {}


@dataclass(frozen=True, slots=True)
class Ran:
    """What an operator's last call in this process ran on."""

    implementation: Implementation
    device: str
    dtype: torch.dtype


@contextmanager
def using(implementation: Implementation) -> Iterator[None]:
    """Within, operators run this implementation or raise ValueError. Backward passes run what their forward pass ran.

    Threads that run already are not told. "triton" on CPU tensors is for tests: it needs TRITON_INTERPRET=1 from the process's start.
    """
    token = _requested.set(_known(implementation, "implementation"))
    try:
        yield
    finally:
        _requested.reset(token)


def choose(operator: str, tensor: torch.Tensor, offered: Collection[Implementation]) -> Implementation:
    """The implementation of `operator` for `tensor`, noted for `provenance`.

    What is asked for must be among the `offered`, else ValueError. Of itself a CPU tensor gets "cpu", one on a GPU
    "triton"; where that is not offered or not installed, "reference". No kernel in Triton takes float64.
    """
    if tensor.dtype == torch.float64:
        offered = [name for name in offered if name != "triton"]
    requested = _requested.get() or _of_environment()
    if requested is not None and requested not in offered:
        raise ValueError(f"{operator} has no implementation {requested!r}; ask for one of {', '.join(sorted(offered))}")
    chosen = requested or _natural(tensor, offered)
    _ran[operator] = Ran(chosen, str(tensor.device), tensor.dtype)
    return chosen


def provenance() -> Mapping[str, Ran]:
    """By operator, what its last call in this process ran on, up to now. Operators that were not called are missing."""
    return MappingProxyType(dict(_ran))  # a copy: other threads go on calling


def _natural(tensor: torch.Tensor, offered: Collection[Implementation]) -> Implementation:
    if tensor.device.type == "cpu":
        return "cpu" if "cpu" in offered else "reference"
    return "triton" if tensor.device.type == "cuda" and "triton" in offered and _has_triton() else "reference"


def _of_environment() -> Implementation | None:
    requested = os.environ.get(VARIABLE, "")
    return _known(requested, VARIABLE) if requested else None


def _known(name: str, source: str) -> Implementation:
    if name not in get_args(Implementation):
        raise ValueError(f"{source} is {name!r}; set it to one of {', '.join(get_args(Implementation))}")
    return cast("Implementation", name)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
