"""Channels that carry the stack's token and the trace context with every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import grpc
from grpc.aio import Channel, ClientCallDetails, UnaryUnaryClientInterceptor
from opentelemetry.trace import SpanKind

from gradbus.rpc.operation import rpc_attributes, rpc_operation
from gradbus.rpc.options import CHANNEL, TOKEN_HEADER
from gradbus.telemetry import span, trace_headers
from gradbus.tls import Identity


def open_channel(address: str, token: str = "", identity: Identity | None = None) -> Channel:
    """A channel to `host:port`, over mutual TLS with an `identity`. Open one for each target and share it in the event loop."""
    interceptors = [_Metadata(token)]
    if identity is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL, interceptors=interceptors)
    files = (identity.authority, identity.key, identity.chain)
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL, interceptors=interceptors)


class _Metadata(UnaryUnaryClientInterceptor):  # type: ignore[type-arg, misc, unused-ignore]
    def __init__(self, token: str) -> None:
        self._fixed = [(TOKEN_HEADER, f"Bearer {token}")] if token else []

    async def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: ClientCallDetails, request: Any) -> Any:
        """The response; the call's error is raised here, inside the call's span."""
        name = _name(client_call_details.method)
        with span(name, SpanKind.CLIENT, attributes=rpc_attributes(name)), rpc_operation("client", name).measured(request.ByteSize()):
            metadata = grpc.aio.Metadata(*self._fixed, *(trace_headers() or {}).items())
            for key, value in client_call_details.metadata or ():
                metadata.add(key, value)
            return await (await continuation(cast("Any", client_call_details)._replace(metadata=metadata), request))


def _name(method: str | bytes) -> str:
    return (method if isinstance(method, str) else method.decode()).lstrip("/")
