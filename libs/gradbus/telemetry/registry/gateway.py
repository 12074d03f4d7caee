"""The metrics of the gateway."""

from __future__ import annotations

from typing import Final, Literal, get_args

from gradbus.telemetry.registry.metric import Metric, each

RefusalCause = Literal[
    "address_connections",
    "address_rate",
    "connections",
    "followers",
    "head_too_large",
    "key_rate",
    "key_requests",
    "malformed",
    "quota",
    "sign_ins",
    "slow_body",
    "slow_head",
    "slow_reader",
    "uploads",
]
"""Limits that a request or a connection can meet."""
_HTTP: Final = ("http.request.method", "http.response.status_code", "http.route", "url.scheme", "error.type")
_ADDRESSED: Final = ("server.address", "server.port", "network.protocol.name", "network.protocol.version")

GATEWAY: Final = (
    Metric(
        "gradbus.gateway.refusals",
        "counter",
        "{refusal}",
        ("gateway",),
        "Requests refused and connections closed because of a limit, by cause.",
        ("gradbus.refusal.cause",),
        zeros=each("gradbus.refusal.cause", *get_args(RefusalCause)),
    ),
    # The others are emitted by the web framework's instrumentation.
    Metric("http.server.request.duration", "histogram", "s", ("gateway",), "Duration of a REST request.", (*_HTTP, *_ADDRESSED)),
    Metric(
        "http.server.active_requests", "up_down_counter", "{request}", ("gateway",), "REST requests in progress.", (*_HTTP, *_ADDRESSED)
    ),
)
