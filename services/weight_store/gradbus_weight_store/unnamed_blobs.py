"""Deletes blobs that no run names: of deleted runs, of uploads that no run used, and of processes that died.

A blob is condemned once it is old enough and nobody names it, and deleted after the same time again unless somebody kept it
(`gradbus.control.condemned`). Blobs from before the buckets were made are left alone: whoever named them may be unknown here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import map_bounded, run_to_end
from gradbus.bus import Bucket, Conflict
from gradbus.control.condemned import Condemned, key_of
from gradbus.errors import GradbusError
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus_weight_store.delete_lock import StoreDeleteLock
from gradbus_weight_store.named_blobs import NamedBlobs

_log = get_logger(__name__)
_FIRST_SECONDS: Final = 60.0
_MAX_PAUSE_SECONDS: Final = 3600.0
_PAUSES: Final = 8
"""Sweeps within a grace period, so that a blob is deleted little later than it may be."""
_BATCH: Final = 64
"""Blobs that are deleted while publishing waits."""
_PARALLEL: Final = 16
_MOST: Final = 20_000
"""Blobs that one sweep condemns: each is a key that the gateway follows."""


class UnnamedBlobs:
    """Sweeps periodically. Every step may be repeated, and a sweep that a crash cut short is completed by the next one."""

    def __init__(
        self, objects: ObjectStore, condemned: Bucket, named: NamedBlobs, delete_lock: StoreDeleteLock, grace_seconds: float
    ) -> None:
        self._objects = objects
        self._condemned = condemned
        self._named = named
        self._delete_lock = delete_lock
        self._grace = grace_seconds

    async def sweep_forever(self) -> None:
        """Sweeps until it is cancelled; never if the grace period is 0."""
        pause = min(_MAX_PAUSE_SECONDS, self._grace / _PAUSES)
        delay = min(_FIRST_SECONDS, pause)
        while self._grace:
            await asyncio.sleep(delay)
            delay = pause
            try:
                await self.sweep()
            except (GradbusError, NatsError, APIError, TimeoutError) as error:
                _log.warning("blob_sweep_failed", error=f"{type(error).__name__}: {error}")
            except Exception:  # noqa: BLE001 - without this task no blob would ever be deleted: logged whole, and tried again
                _log.exception("blob_sweep_failed")

    async def sweep(self) -> None:
        """Deletes the condemned blobs whose time is over, then condemns others. Raises StorageError and errors of NATS."""
        view = self._condemned.snapshot()
        await view.read()
        known = {f"sha256:{key}": Condemned.model_validate_json(value) for key, value in view.entries.items()}
        due = [digest for digest, one in known.items() if one.deleting or time.time_ns() - one.since_unix_ns > self._grace * 1e9]
        deleted = 0
        for batch in (due[at : at + _BATCH] for at in range(0, len(due), _BATCH)):
            await self._named.among(batch)  # fills the caches, so that the lock is held for a short time
            async with self._delete_lock.deleting():
                named = await self._named.among(batch)
                deleted += await self._delete_batch(batch, named)
        condemned = await self._condemn(known.keys())
        if deleted or condemned:
            _log.info("unnamed_blobs_swept", deleted=deleted, condemned=condemned)

    async def _condemn(self, known: Collection[str]) -> int:
        """Condemns old blobs that nobody names; their number."""
        before = datetime.now(UTC) - timedelta(seconds=self._grace)
        old = await self._objects.blobs_between(await self._condemned.created(), before)
        candidates = set(old).difference(known)
        unnamed = sorted(candidates - await self._named.among(candidates))[:_MOST]
        await map_bounded(self._put, unnamed, _PARALLEL)
        return len(unnamed)

    async def _put(self, digest: str) -> None:
        await self._condemned.put(key_of(digest), Condemned(since_unix_ns=time.time_ns()).to_bytes())

    async def _delete_batch(self, batch: Collection[str], named: Collection[str]) -> int:
        """Deletes those that are not named; their number. When one fails, no deletion goes on behind the lock."""
        deleted = await map_bounded(lambda digest: run_to_end(self._delete(digest, is_named=digest in named)), batch, _PARALLEL)
        return sum(deleted)

    async def _delete(self, digest: str, *, is_named: bool) -> bool:
        """Deletes the blob unless it is named, or was kept since the sweep began."""
        key = key_of(digest)
        try:
            entry = await self._condemned.get(key)
            if entry is None:
                return False
            if is_named:
                await self._condemned.purge(key, entry.revision)
                return False
            claim = Condemned.model_validate_json(entry.value).model_copy(update={"deleting": True})
            await self._condemned.update(key, claim.to_bytes(), entry.revision)
        except Conflict:
            return False
        await self._objects.delete_blob(digest)
        await self._condemned.purge(key)
        return True
