"""Channel and server options, which must agree with each other."""

from __future__ import annotations

import json
from typing import Final

TOKEN_HEADER: Final = "authorization"  # noqa: S105 - a header name
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
HANDSHAKE_MS: Final = 10_000
_PENDING: Final = 16_384
_STREAMS: Final = 4096
"""Calls of one connection. A caller with more waits, which costs the server nothing."""
_CONNECTIONS: Final = 1024
"""Each process of the other services has one; a rollout worker or a trainer may be one of hundreds."""

Options = list[tuple[str, str | int]]

# gRPC inflates a message before it checks the size: a compressed message could fill the memory.
UNCOMPRESSED: Final = ("grpc.compression_enabled_algorithms_bitset", 1)

SERVER: Final[Options] = [
    UNCOMPRESSED,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A caller that is gone without closing is noticed, and one that connects and says nothing is closed.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.max_allowed_incoming_connections", _CONNECTIONS),
    ("grpc.max_concurrent_streams", _STREAMS),
    # By default gRPC cancels calls at random beyond 1,000 unaccepted ones; our clients limit themselves instead.
    ("grpc.server.max_pending_requests", _PENDING),
    ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING),
    ("grpc.so_reuseport", 0),
]

CHANNEL: Final[Options] = [
    UNCOMPRESSED,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    (
        "grpc.service_config",
        json.dumps(
            {
                "loadBalancingConfig": [{"round_robin": {}}],
                "methodConfig": [
                    {
                        "name": [{}],
                        "retryPolicy": {
                            "maxAttempts": 5,
                            "initialBackoff": "0.05s",
                            "maxBackoff": "1s",
                            "backoffMultiplier": 2,
                            "retryableStatusCodes": ["UNAVAILABLE"],
                        },
                    }
                ],
            }
        ),
    ),
]
