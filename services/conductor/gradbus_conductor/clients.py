"""The conductor's connections to the servers and the other services, opened once per process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpc.aio import Channel
from redis.asyncio import Redis

from gradbus.buffer import open_buffer
from gradbus.bus import Bus
from gradbus.objects import ObjectStore
from gradbus.rpc import open_channel
from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceStub
from gradbus.v1.reward_service_pb2_grpc import RewardServiceStub
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_conductor.settings import Settings

if TYPE_CHECKING:
    from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceAsyncStub
    from gradbus.v1.reward_service_pb2_grpc import RewardServiceAsyncStub
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub


@dataclass(frozen=True, slots=True)
class Addresses:
    """`host:port` of the services that the conductor calls, for messages."""

    weight_store: str
    reward: str
    reference: str


@dataclass(frozen=True, slots=True)
class Clients:
    """Connections that all runs of this process share."""

    bus: Bus
    buffer: Redis
    objects: ObjectStore
    weight_store: WeightStoreServiceAsyncStub
    reward: RewardServiceAsyncStub
    reference: ReferenceServiceAsyncStub
    reward_model: RewardServiceAsyncStub
    """The reference service, which scores by the reward models of runs."""
    channels: tuple[Channel, ...]
    addresses: Addresses
    cache_dir: Path
    """Where files from a bucket are while they are read."""
    trace_groups: float = 0.0
    """Share of groups that are traced, 0 to 1."""
    run_buffer_bytes: int = 1 << 30
    """Bytes of the buffer that one run may hold."""

    @classmethod
    async def open(cls, settings: Settings) -> Clients:
        """Connects to everything. Raises SettingsError when NATS does not answer."""
        token, identity = settings.rpc_token.get_secret_value(), settings.identity
        channels = tuple(open_channel(address, token, identity) for address in (settings.weight_store, settings.reward, settings.reference))
        return cls(
            bus=await Bus.connect(settings.bus, f"conductor {settings.worker_id}"),
            buffer=open_buffer(settings.buffer),
            objects=settings.open_objects(),
            weight_store=WeightStoreServiceStub(channels[0]),
            reward=RewardServiceStub(channels[1]),
            reference=ReferenceServiceStub(channels[2]),
            reward_model=RewardServiceStub(channels[2]),
            channels=channels,
            addresses=Addresses(settings.weight_store, settings.reward, settings.reference),
            cache_dir=settings.cache_dir,
            trace_groups=settings.trace_groups,
            run_buffer_bytes=settings.run_buffer_bytes,
        )

    async def close(self) -> None:
        """Closes all connections."""
        for channel in self.channels:
            await channel.close()
        await self.buffer.aclose()
        await self.bus.close()
