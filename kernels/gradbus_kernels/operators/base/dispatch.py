"""Chooses the implementation of an operator, by device or by request, and records the choice."""

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
"""Environment variable that requests one implementation for the whole process."""

_requested: ContextVar[Implementation | None] = ContextVar("gradbus_kernels_implementation", default=None)
_ran: dict[str, Ran] = {}


@dataclass(frozen=True, slots=True)
class Ran:
    """Implementation, device and dtype of an operator's last call in this process."""

    implementation: Implementation
    device: str
    dtype: torch.dtype


@contextmanager
def using(implementation: Implementation) -> Iterator[None]:
    """Inside the block, operators run this implementation or raise ValueError. A backward pass runs the implementation of its forward pass.

    Threads that were started before are not affected. "triton" on CPU tensors is for tests; it needs TRITON_INTERPRET=1 in the environment
    when the process starts.
    """
    token = _requested.set(_known(implementation, "implementation"))
    try:
        yield
    finally:
        _requested.reset(token)


def choose(operator: str, tensor: torch.Tensor, offered: Collection[Implementation]) -> Implementation:
    """Returns the implementation of `operator` for `tensor`, and records it for `provenance`.

    Raises ValueError if the requested implementation is not among the `offered`. Without a request, a CPU tensor gets "cpu" and
    a GPU tensor "triton"; where that is not offered or not installed, "reference". No Triton kernel takes float64.
    """
    if tensor.dtype == torch.float64:
        offered = [name for name in offered if name != "triton"]
    requested = _requested.get() or _of_environment()
    if requested is not None and requested not in offered:
        raise ValueError(f"{operator} has no implementation {requested!r}; ask for one of {', '.join(sorted(offered))}")
    chosen = requested or _natural(tensor, offered)
    _ran[operator] = _ran_on(chosen, tensor.device, tensor.dtype)
    return chosen


def provenance() -> Mapping[str, Ran]:
    """The last call in this process, by operator. Operators that were not called are missing."""
    return MappingProxyType(dict(_ran))  # a copy, because other threads may call operators meanwhile


@cache
def _ran_on(chosen: Implementation, device: torch.device, dtype: torch.dtype) -> Ran:
    return Ran(chosen, str(device), dtype)


def _natural(tensor: torch.Tensor, offered: Collection[Implementation]) -> Implementation:
    if tensor.device.type == "cpu":
        return "cpu" if "cpu" in offered else "reference"
    return "triton" if tensor.device.type == "cuda" and "triton" in offered and _has_triton() else "reference"


def _of_environment() -> Implementation | None:
    if VARIABLE not in os.environ:  # which costs less than to get nothing
        return None
    requested = os.environ[VARIABLE]
    return _known(requested, VARIABLE) if requested else None


def _known(name: str, source: str) -> Implementation:
    if name not in get_args(Implementation):
        raise ValueError(f"{source} is {name!r}; set it to one of {', '.join(get_args(Implementation))}")
    return cast("Implementation", name)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
