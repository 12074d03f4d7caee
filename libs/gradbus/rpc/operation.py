"""How calls are measured."""

from __future__ import annotations

from functools import cache
from typing import Literal

from gradbus.telemetry import WireOperation


@cache
def rpc_operation(side: Literal["client", "server"], method: str) -> WireOperation:
    """The operation of `package.Service/Method`, seen from one side. Method names come from stubs and servicers alone."""
    return WireOperation("grpc", {"rpc.system.name": "grpc", "rpc.method": method}, side)
