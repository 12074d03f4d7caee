"""The dependency of every route: what request handlers share. All state is in NATS and object storage; caches are filled again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request
from redis.asyncio import Redis

from gradbus.access.keyring import Keyring
from gradbus.bus import Bus
from gradbus.control.condemned import CondemnedBlobs
from gradbus.objects import ObjectStore
from gradbus_gateway.auth.sessions import Sessions
from gradbus_gateway.events.feeds import EventFeeds
from gradbus_gateway.history.histories import Histories
from gradbus_gateway.intake.plan import Planner
from gradbus_gateway.intake.submission import RunIntake
from gradbus_gateway.quotas.uploads import UploadQuota
from gradbus_gateway.resources.dataset_rows import DatasetRows
from gradbus_gateway.runs.listing import RunList
from gradbus_gateway.runs.relations import RunRelations
from gradbus_gateway.runs.store import RunStore
from gradbus_gateway.worker_roster import WorkerRoster

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub


@dataclass(frozen=True, slots=True)
class Gateway:
    """The stores and clients behind the routes."""

    keyring: Keyring
    sessions: Sessions
    runs: RunStore
    run_list: RunList
    relations: RunRelations
    feeds: EventFeeds
    histories: Histories
    uploads: UploadQuota
    intake: RunIntake
    planner: Planner
    bus: Bus
    workers: WorkerRoster
    buffer: Redis
    objects: ObjectStore
    rows: DatasetRows
    condemned: CondemnedBlobs
    weights: WeightStoreServiceAsyncStub
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process drains: event streams end, so that clients connect to another replica."""


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves `request`."""
    return cast("Gateway", request.app.state.gateway)


async def _gateway(request: Request) -> Gateway:
    # Asynchronous, because FastAPI runs every other dependency in a thread, once a request.
    return gateway_of(request)


GatewayDep = Annotated[Gateway, Depends(_gateway)]
