"""The gRPC server: health, tokens and rights around the services that are added to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry.trace import SpanKind

from gradbus.access import host_name
from gradbus.errors import SettingsError
from gradbus.rpc.callers import Callers
from gradbus.rpc.operation import rpc_attributes, rpc_operation
from gradbus.rpc.options import SERVER, TOKEN_HEADER
from gradbus.telemetry import span
from gradbus.tls import Identity

_GRACE_SECONDS = 5.0
_OPEN_METHODS = "/grpc.health.v1.Health/"


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """The address to listen on, and the callers: role to the hash of its token. A server without callers is refused."""

    address: str
    callers: Mapping[str, str]
    identity: Identity | None = None
    """With it the server takes calls over mutual TLS alone, and a caller's certificate must carry the host name of its token's role."""


class RpcServer:
    """Add services to `server`, then `start`; `stop` finishes the calls in flight."""

    def __init__(self, settings: RpcSettings) -> None:
        if not settings.callers:
            raise SettingsError(
                "a gRPC server needs to know its callers; set GRADBUS_RPC_CALLERS to a JSON object of roles and the SHA-256 of their tokens"
            )
        authentication = _Authentication(Callers(settings.callers), mutual_tls=settings.identity is not None)
        self.server = grpc.aio.server(options=SERVER, interceptors=[authentication])
        self._settings = settings
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        self.port = 0

    async def start(self) -> None:
        """Starts to listen. Raises SettingsError when the address is taken."""
        try:
            self.port = self._add_port(self._settings.address, self._settings.identity)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise SettingsError(f"cannot listen on {self._settings.address}; is another process using the port? choose another address")
        await self.server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def _add_port(self, address: str, identity: Identity | None) -> int:
        if identity is None:
            return self.server.add_insecure_port(address)
        pair = (identity.key.read_bytes(), identity.chain.read_bytes())
        return self.server.add_secure_port(address, grpc.ssl_server_credentials([pair], identity.authority.read_bytes(), True))

    async def stop(self) -> None:
        """Reports not serving, finishes the calls in flight, and closes."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(_GRACE_SECONDS)


class _Authentication(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses unknown tokens, tokens without a right to the method, and certificates of other roles. Continues the caller's trace."""

    def __init__(self, callers: Callers, mutual_tls: bool) -> None:
        self._callers = callers
        self._mutual_tls = mutual_tls
        self._handlers: dict[tuple[str, frozenset[str]], Any] = {}
        """Made once for a method and the roles that call it, both of which are few."""
        self._unknown = _refusal(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong; send `authorization: Bearer <token>`")
        self._forbidden = _refusal(grpc.StatusCode.PERMISSION_DENIED, "this token's role may not call this method; use its owner's token")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method.startswith(_OPEN_METHODS):
            return await continuation(handler_call_details)
        metadata: dict[str, Any] = dict(handler_call_details.invocation_metadata or ())
        roles = self._callers.roles_of(_bearer(metadata.get(TOKEN_HEADER, "")))
        if not roles:
            return self._unknown
        allowed = self._callers.allowed(roles, method.lstrip("/"))
        if not allowed:
            return self._forbidden
        if (known := self._handlers.get((method, allowed))) is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        hosts = frozenset(host_name(role) for role in allowed) if self._mutual_tls else None
        traced = self._handlers[method, allowed] = _traced(handler, method, hosts)
        return traced


def _traced(handler: Any, method: str, hosts: frozenset[str] | None) -> Any:
    """The handler in the caller's trace. With `hosts` the caller's certificate must carry one of these names."""
    name = method.lstrip("/")
    operation, attributes = rpc_operation("server", name), rpc_attributes(name)

    async def behaviour(request: Any, context: Any) -> Any:
        if hosts is not None and hosts.isdisjoint(shown.decode(errors="replace") for shown in context.peer_identities() or ()):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is not that of the token's role; use both of one role")
        traceparent = next((str(value) for key, value in context.invocation_metadata() or () if key == "traceparent"), "")
        with span(name, SpanKind.SERVER, traceparent, attributes), operation.measured(request.ByteSize()):
            return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )


def _bearer(header: str | bytes) -> str:
    text = header if isinstance(header, str) else header.decode(errors="replace")
    scheme, _, token = text.partition(" ")
    return token if scheme == "Bearer" else ""


def _refusal(code: grpc.StatusCode, details: str) -> Any:
    async def refuse(_requests: Any, context: Any) -> None:
        await context.abort(code, details)

    # Declared as a stream, so that the request of an unknown caller is not read.
    return grpc.stream_unary_rpc_method_handler(refuse)
