"""What a request handler works with. The gateway remembers only what it could find out again: all state is in NATS and object storage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request
from redis.asyncio import Redis

from gradbus.bus import Bucket, Bus
from gradbus.objects import ObjectStore
from gradbus_gateway.auth.keyring import Keyring
from gradbus_gateway.auth.sessions import Sessions
from gradbus_gateway.intake.data import CheckedData
from gradbus_gateway.intake.model import CheckedModels
from gradbus_gateway.runs.store import RunStore
from gradbus_gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub


@dataclass(frozen=True, slots=True)
class Gateway:
    """The adapters behind the routes."""

    settings: GatewaySettings
    keyring: Keyring
    bus: Bus
    runs: RunStore
    workers: Bucket
    sessions: Sessions
    buffer: Redis
    objects: ObjectStore
    weights: WeightStoreServiceAsyncStub
    models: CheckedModels = field(default_factory=CheckedModels)
    datasets: CheckedData = field(default_factory=CheckedData)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process drains: streams end, so that clients connect to another replica."""


def gateway_of(request: Request) -> Gateway:
    """What serves the request."""
    return cast("Gateway", request.app.state.gateway)


async def _gateway(request: Request) -> Gateway:
    # Not a plain function: those are sent through a thread, once a request.
    return gateway_of(request)


Here = Annotated[Gateway, Depends(_gateway)]
