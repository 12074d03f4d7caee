"""What a failed call means to a person: which service, where, and what to do. gRPC's own words are for the log."""

from __future__ import annotations

import re

import grpc
from grpc.aio import AioRpcError

_OF_THE_TRANSPORT = re.compile(
    r"failed to connect|backends failing|last error|socket closed|reset by peer|recvmsg|broken pipe|goaway|keepalive|dns |stream removed"
    r"|deadline exceeded|cancelled",
    re.IGNORECASE,
)
"""gRPC does not tell its own words from a server's."""
_ADVICE = {
    grpc.StatusCode.UNAVAILABLE: "does not answer; check that it runs, or wait if it is starting",
    grpc.StatusCode.CANCELLED: "broke off the call; check that it runs",
    grpc.StatusCode.DEADLINE_EXCEEDED: "gave no answer in time; see whether it is overloaded or hangs",
}
_REFUSALS = {
    grpc.StatusCode.UNIMPLEMENTED: "does not know the call; see that this is the service's address, and of the same release",
    grpc.StatusCode.UNAUTHENTICATED: "does not accept our token; give both sides the same secrets",
    grpc.StatusCode.PERMISSION_DENIED: "does not accept our token; give both sides the same secrets",
}


def describe_rpc_error(service: str, address: str, error: AioRpcError) -> str:
    """The failure as a sentence, in the server's own words where it said something."""
    said = error.details() or ""
    if _OF_THE_TRANSPORT.search(said):
        said = ""
    advice = _REFUSALS.get(error.code()) or (f"refused: {said}" if said else _ADVICE.get(error.code(), "broke the call; see its log"))
    return f"{service} at {address} {advice}"
