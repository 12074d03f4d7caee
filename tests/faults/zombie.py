"""A process of an older term that does not know it is over."""

from __future__ import annotations

import json

from gradbus.embedded import Stack
from gradbus.rpc import open_channel
from gradbus.v1.weight_store_service_pb2 import GetHeadsRequest, GetVersionRequest, PublishVersionRequest
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub


class ZombieTrainer:
    """Remembers the term that was the newest when it was made."""

    def __init__(self, stack: Stack, run_id: str) -> None:
        root = stack.state.root
        token = (root / "secrets" / "trainer" / "gradbus_rpc_token").read_text().strip()
        port = json.loads((root / "ports.json").read_text())["weight_store"]
        self._channel = open_channel(f"127.0.0.1:{port}", token)
        self._stub = WeightStoreServiceStub(self._channel)
        self._run_id = run_id
        self.term = 0

    async def remember(self) -> None:
        """Takes the newest term for its own."""
        self.term = (await self._stub.GetHeads(GetHeadsRequest(run_id=self._run_id), timeout=60.0)).heads.term

    async def publish_the_base_model_as(self, ahead: int) -> None:
        """Publishes version 0's weights under a step that is still to come. Raises AioRpcError when refused."""
        heads = (await self._stub.GetHeads(GetHeadsRequest(run_id=self._run_id), timeout=60.0)).heads
        manifest = (await self._stub.GetVersion(GetVersionRequest(run_id=self._run_id, step=0), timeout=60.0)).manifest
        manifest.step = heads.version_step + ahead
        manifest.term = self.term
        await self._stub.PublishVersion(PublishVersionRequest(manifest=manifest), timeout=60.0)

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()
