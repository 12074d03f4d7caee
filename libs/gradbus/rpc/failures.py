"""Failed calls: repeated while a server is away, or described for a person."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
from grpc.aio import AioRpcError

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_Answer = TypeVar("_Answer")
_RETRY_SECONDS: Final = 0.2
AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
"""Codes of a call to a server that is gone, slow or still starting."""
_TRANSPORT_ERRORS = re.compile(
    r"failed to connect|backends failing|last error|socket closed|reset by peer|recvmsg|broken pipe|goaway|keepalive|dns |stream removed"
    r"|deadline exceeded|cancelled",
    re.IGNORECASE,
)
"""gRPC does not separate its own messages from a server's."""
_TLS_ERRORS = (
    (
        r"CERTIFICATE_VERIFY_FAILED: ([\w -]+)",
        "shows a certificate that is not valid here ({}); use certificates of one authority and renew them in time",
    ),
    (r"is not in peer certificate", "shows a certificate for another name; issue one for the name in this address"),
    (r"WRONG_VERSION_NUMBER", "does not use TLS, but this process does; set GRADBUS_TLS_DIR for both or for neither"),
    (
        r"last error: .*Socket closed",
        "closes the connection; check that it runs, and that both sides have certificates of one authority, or neither has any",
    ),
)
"""What gRPC reports of a handshake that fails, and what to do. A server that refuses a client only closes the connection."""
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


async def until_answered(
    call: Callable[[], Awaitable[_Answer]], run_id: str, away: frozenset[grpc.StatusCode] = AWAY, seconds: float = math.inf
) -> _Answer:
    """The weight store's answer to an idempotent call, which is repeated for `seconds` while the store is away.

    Raises AioRpcError: at once with any code that is not in `away`, and with one of `away` when the time is over.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except AioRpcError as error:
            if error.code() not in away or time.monotonic() > deadline:
                raise
            _log.info("weight_store_unreachable", run_id=run_id, code=error.code().name, detail=error.details())
        await asyncio.sleep(_RETRY_SECONDS)


def describe_rpc_error(service: str, address: str, error: AioRpcError) -> str:
    """A sentence for a person: which service failed, where, and what to do. Quotes the server's own message if there is one."""
    said = error.details() or ""
    for pattern, advice in _TLS_ERRORS:
        if found := re.search(pattern, said):
            return f"{service} at {address} {advice.format(*found.groups())}"
    if _TRANSPORT_ERRORS.search(said):
        said = ""
    advice = _REFUSALS.get(error.code()) or (f"refused: {said}" if said else _ADVICE.get(error.code(), "broke the call; see its log"))
    return f"{service} at {address} {advice}"
