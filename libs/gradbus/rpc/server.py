"""The server frame: health and tokens around the services it is given."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry.trace import SpanKind

from gradbus.errors import SettingsError
from gradbus.rpc.operation import rpc_operation
from gradbus.rpc.options import SERVER, TOKEN_HEADER
from gradbus.telemetry import span

_GRACE_SECONDS = 5.0
_OPEN_METHODS = "/grpc.health.v1.Health/"


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """Where a server listens and the token its callers must show; an empty token is refused."""

    address: str
    token: str


class RpcServer:
    """`add` services, `start`, and `stop` to drain."""

    def __init__(self, settings: RpcSettings) -> None:
        if not settings.token:
            raise SettingsError("a gRPC server needs a token; set GRADBUS_RPC_TOKEN or put it into the secrets folder")
        self.server = grpc.aio.server(options=SERVER, interceptors=[_Guard(settings.token)])
        self._address = settings.address
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        self.port = 0

    async def start(self) -> None:
        """Listens. Raises SettingsError when the address is taken."""
        try:
            self.port = self.server.add_insecure_port(self._address)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise SettingsError(f"cannot listen on {self._address}; is another process using the port? choose another address")
        await self.server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Reports not serving, finishes what is in flight, and closes."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(_GRACE_SECONDS)


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses calls without the token, and puts each call into its caller's trace."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refusal: Any = grpc.unary_unary_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method.startswith(_OPEN_METHODS):
            return await continuation(handler_call_details)
        metadata: dict[str, Any] = dict(handler_call_details.invocation_metadata or ())
        given = metadata.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
            return self._refusal
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        return _traced(handler, method, str(metadata.get("traceparent", "")))


def _traced(handler: Any, method: str, traceparent: str) -> Any:
    name = method.lstrip("/")
    operation = rpc_operation("server", name)

    async def behaviour(request: Any, context: Any) -> Any:
        with span(name, SpanKind.SERVER, traceparent, {"rpc.system": "grpc"}), operation.measured(request.ByteSize()):
            return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )


async def _refuse(_request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong; send `authorization: Bearer <token>`")
