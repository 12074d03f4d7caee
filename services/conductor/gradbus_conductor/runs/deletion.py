"""Deletes finished runs that a user or retention wants deleted. Users do not see such a run any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
from bisect import bisect_right
from collections.abc import Sequence

from grpc.aio import AioRpcError
from nats.errors import Error as NatsError
from nats.js.errors import APIError
from pydantic import ValidationError
from redis.exceptions import RedisError

from gradbus.bus import Bucket, Buckets, Conflict, Entry, EventLog
from gradbus.control.annotations import ANNOTATIONS
from gradbus.control.runs import DELETED_SECONDS, FINAL_STATES, RunRecord, RunStatus, deletion_key
from gradbus.control.scorers import SCORERS, WANTED_SCORERS
from gradbus.errors import CorruptRecordError, GradbusError
from gradbus.experience import GroupStore
from gradbus.experience.archive import remove_archive
from gradbus.run_files.record import remove_record
from gradbus.telemetry import get_logger
from gradbus.v1.weight_store_service_pb2 import DeleteRunRequest
from gradbus_conductor.clients import Clients
from gradbus_conductor.runs.index import RunIndex

_log = get_logger(__name__)
_POLL_SECONDS = 0.5
_RETRY_SECONDS = 5.0
_BATCH = 256
_PARALLEL = 8
_RPC_SECONDS = 30.0


class RunDeletion:
    """Removes everything that a run left. `<run>.desired` goes last: until then another conductor can begin again."""

    def __init__(self, clients: Clients, runs_bucket: Bucket, runs: RunIndex) -> None:
        self._clients = clients
        self._bucket = runs_bucket
        self._runs = runs
        self._turns = asyncio.Semaphore(_PARALLEL)
        self._newest_tried = ""

    async def delete_forever(self) -> None:
        """Deletes until it is cancelled."""
        while True:
            names = self._next()
            deleted = await asyncio.gather(*map(self._delete_or_postpone, names))
            if any(deleted):
                _log.info("runs_deleted", runs=sum(deleted), left=len(self._runs.names("deleted")))
            await asyncio.sleep(_POLL_SECONDS if all(deleted) else _RETRY_SECONDS)

    def _next(self) -> Sequence[str]:
        """The runs behind the last batch, else the oldest: those that cannot be deleted keep no others waiting."""
        names = self._runs.names("deleted")
        behind = bisect_right(names, self._newest_tried)
        batch = names[behind : behind + _BATCH] or names[:_BATCH]
        self._newest_tried = batch[-1] if batch else ""
        return batch

    async def _delete_or_postpone(self, run_id: str) -> bool:
        async with self._turns:
            try:
                await self.delete(run_id)
            except (GradbusError, NatsError, APIError, RedisError, AioRpcError, TimeoutError, OSError) as error:
                _log.warning("run_deletion_postponed", run_id=run_id, error=f"{type(error).__name__}: {error}")
                return False
            except Exception:  # noqa: BLE001 - the boundary of one run: logged whole, and tried again
                _log.exception("run_deletion_failed", run_id=run_id)
                return False
        return True

    async def delete(self, run_id: str) -> None:
        """Deletes the run, if that is still wanted. May be repeated, and by several conductors at once.

        Raises CorruptRecordError for a run that has not ended, StorageError, and errors of NATS, of the buffer and of the weight store.
        """
        spec, desired, status = [await self._bucket.get(f"{run_id}.{key}") for key in ("spec", "desired", "status")]
        if desired is None or json.loads(desired.value) != "deleted":
            return
        if status is not None and not _is_final(status):
            raise CorruptRecordError(
                f"{run_id} is to be deleted, but the key {run_id}.status in the bucket `runs` does not say that it has ended; "
                f"restore its value, or delete the keys {run_id}.* there"
            )
        if _has_begun(status):
            await self._remove_content(run_id)
        await EventLog(self._clients.bus, run_id).remove()
        # Before the spec: a request that read the key earlier finds out that its run was deleted, and creates another one.
        await self._remove_idempotency_key(spec, run_id)
        for kind in ("evaluations", ANNOTATIONS, WANTED_SCORERS, SCORERS, "spec", "status"):
            await self._bucket.purge(f"{run_id}.{kind}")
        await self._bucket.put_for(deletion_key(run_id), b"true", DELETED_SECONDS)
        with contextlib.suppress(Conflict):  # another conductor was first
            await self._bucket.purge(f"{run_id}.desired", desired.revision)

    async def _remove_content(self, run_id: str) -> None:
        await GroupStore(self._clients.buffer, run_id).forget_run()
        await remove_archive(self._clients.objects, run_id)
        await remove_record(self._clients.objects, run_id)
        await self._clients.weight_store.DeleteRun(DeleteRunRequest(run_id=run_id), timeout=_RPC_SECONDS)
        await (await self._clients.bus.bucket(Buckets.PROBES)).purge(run_id)

    async def _remove_idempotency_key(self, spec: Entry | None, run_id: str) -> None:
        """The key may belong to another run by now: a request that came after an earlier attempt to delete this one."""
        key = f"idempotency.key.{_idempotency_key(spec)}"
        entry = await self._bucket.get(key) if spec else None
        if entry is not None and json.loads(entry.value)["run_id"] == run_id:
            await self._bucket.purge(key, entry.revision)


def _is_final(status: Entry | None) -> bool:
    found = _status(status)
    return found is not None and found.state in FINAL_STATES


def _has_begun(status: Entry | None) -> bool:
    """Also if nothing is known of it: an attempt to delete it may have removed its status already."""
    found = _status(status)
    return found is None or found.has_begun


def _status(entry: Entry | None) -> RunStatus | None:
    try:
        return RunStatus.model_validate_json(entry.value) if entry else None
    except ValidationError:
        return None


def _idempotency_key(spec: Entry | None) -> str:
    try:
        return RunRecord.model_validate_json(spec.value).idempotency_key if spec else ""
    except ValidationError:
        return ""
