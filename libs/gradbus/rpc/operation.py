"""Measurements of calls: attributes and operation names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from gradbus.telemetry import WireOperation


def rpc_attributes(method: str) -> Mapping[str, str]:
    """Attributes of a call in spans and metrics."""
    return {"rpc.system.name": "grpc", "rpc.method": method}


@cache
def rpc_operation(side: Literal["client", "server"], method: str) -> WireOperation:
    """The operation of `package.Service/Method`, seen from one side. Method names come from stubs and servicers alone."""
    return WireOperation("grpc", rpc_attributes(method), side)
