"""The trainer's calls to the weight store: repeated while it is unavailable, ended by a newer term."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc.aio import AioRpcError

from gradbus.errors import FencedError, ObjectMissingError
from gradbus.rpc import AWAY, until_answered
from gradbus.v1.weight_store_service_pb2 import (
    CommitCheckpointRequest,
    GetCheckpointRequest,
    GetCheckpointResponse,
    OpenTermRequest,
    PublishVersionRequest,
)
from gradbus.v1.weights_pb2 import CheckpointManifest, WeightManifest

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub

_Answer = TypeVar("_Answer")
_CALL_SECONDS = 30.0
_AWAY = AWAY | {grpc.StatusCode.INTERNAL}


class StoreClient:
    """All calls are idempotent and repeated until they are answered.

    FencedError: a newer trainer has the run, or the write contradicts what the store has; the message has the store's reason.
    """

    def __init__(self, stub: WeightStoreServiceAsyncStub, run_id: str) -> None:
        self._stub = stub
        self._run_id = run_id

    async def open_term(self, term: int) -> None:
        """Fences older trainers of the run."""
        request = OpenTermRequest(run_id=self._run_id, term=term)
        await self._until_answered(lambda: self._stub.OpenTerm(request, timeout=_CALL_SECONDS))

    async def publish(self, manifest: WeightManifest) -> bool:
        """Announces a version; True if an older term published other bits under the same step. Raises ObjectMissingError."""
        request = PublishVersionRequest(manifest=manifest)
        with _missing():
            return (await self._until_answered(lambda: self._stub.PublishVersion(request, timeout=_CALL_SECONDS))).diverged

    async def commit(self, manifest: CheckpointManifest) -> str:
        """Moves the checkpoint head; the manifest's digest. Raises ObjectMissingError."""
        request = CommitCheckpointRequest(manifest=manifest)
        with _missing():
            return (await self._until_answered(lambda: self._stub.CommitCheckpoint(request, timeout=_CALL_SECONDS))).digest

    async def checkpoint(self) -> GetCheckpointResponse | None:
        """The newest checkpoint, if there is one."""
        request = GetCheckpointRequest(run_id=self._run_id)
        try:
            return await self._until_answered(lambda: self._stub.GetCheckpoint(request, timeout=_CALL_SECONDS))
        except AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise

    async def _until_answered(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        try:
            return await until_answered(call, self._run_id, _AWAY)
        except AioRpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                raise FencedError(f"the weight store refused: {error.details()}") from None
            raise


@contextmanager
def _missing() -> Iterator[None]:
    try:
        yield
    except AioRpcError as error:
        if error.code() == grpc.StatusCode.NOT_FOUND:
            raise ObjectMissingError(f"the weight store refused: {error.details()}") from None
        raise
