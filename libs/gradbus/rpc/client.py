"""Channels that carry the stack's token and the trace context with every call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self, cast

import grpc
from grpc.aio import Channel
from opentelemetry.trace import SpanKind

from gradbus.rpc.operation import rpc_attributes, rpc_operation
from gradbus.rpc.options import CHANNEL, TOKEN_HEADER
from gradbus.telemetry import span, trace_headers
from gradbus.tls import Identity


def open_channel(address: str, token: str = "", identity: Identity | None = None) -> Channel:
    """A channel to `host:port`, over mutual TLS with an `identity`. Open one for each target and share it in the event loop.

    What its unary methods return is awaited once, which begins the call.
    """
    return cast("Channel", _Channel(_plain_channel(address, identity), token))


def _plain_channel(address: str, identity: Identity | None) -> Channel:
    if identity is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL)
    files = (identity.authority, identity.key, identity.chain)
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL)


class _Channel:
    """Adds to each unary call what it carries. An interceptor would do so too, and cost gRPC two more tasks for each call."""

    def __init__(self, channel: Channel, token: str) -> None:
        self._channel = channel
        self._fixed = [(TOKEN_HEADER, f"Bearer {token}")] if token else []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def unary_unary(self, method: str, **serializers: Any) -> Callable[..., Awaitable[Any]]:
        """As `Channel.unary_unary`."""
        name = method.lstrip("/")
        plain, attributes, operation = self._channel.unary_unary(method, **serializers), rpc_attributes(name), rpc_operation("client", name)

        async def call(request: Any, *, metadata: Iterable[tuple[str, str]] = (), **options: Any) -> Any:
            """The response; the call's error is raised here, inside the call's span."""
            with span(name, SpanKind.CLIENT, attributes=attributes), operation.measured(request.ByteSize()):
                carried = grpc.aio.Metadata(*self._fixed, *(trace_headers() or {}).items(), *metadata)
                return await plain(request, metadata=carried, **options)

        return call
