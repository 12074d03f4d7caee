"""Which blobs any run names: in its spec or its status, or in the manifest of a version or checkpoint. Runs share blobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from collections.abc import Set as AbstractSet

from pydantic import ValidationError

from gradbus.aio.tasks import map_bounded, run_to_end
from gradbus.bus import Bucket
from gradbus.control.annotations import ANNOTATIONS
from gradbus.control.runs import FINAL_STATES, RunStatus
from gradbus.ids import digests_in
from gradbus.objects import ObjectStore
from gradbus_weight_store.manifests import Manifests, run_of

_PARALLEL = 16
_RECORDS_SECONDS = 10.0


class NamedBlobs:
    """Reads what may have changed since the last question: there may be thousands of runs, most of which are over.

    Nobody writes manifests of a run that is over: its trainers are fenced or have committed their last checkpoint. They are read once,
    and again if this process writes or deletes one. A manifest that another replica deletes counts until this process restarts.
    """

    def __init__(self, manifests: Manifests, runs: Bucket) -> None:
        self._manifests = manifests
        self._records = runs.snapshot("*.*")
        self._digests: dict[str, frozenset[str]] = {}
        """Key of the bucket, or id of a settled run, to the digests in its value or its manifests."""
        self._named: Counter[str] = Counter()
        self._over: set[str] = set()
        self._settled: dict[str, int] = {}
        """Runs that are over and whose manifests have all been read, to the changes that this process had made to them before."""
        self._records.listen(self._update)
        self._asking = asyncio.Lock()

    async def among(self, blobs: Collection[str], without: AbstractSet[str] = frozenset()) -> set[str]:
        """Those of `blobs` that are named. The manifests at the paths `without` do not count.

        Raises StorageError, errors of NATS, and TimeoutError if NATS is slow: publishing may wait for the answer.
        """
        async with self._asking:  # what one question forgets, in order to read it again, would be missing in the answer to another
            in_manifests = await self._in_manifests(without)
            async with asyncio.timeout(_RECORDS_SECONDS):
                await self._records.read()
            return {digest for digest in blobs if digest in in_manifests or self._named[digest]}

    async def _in_manifests(self, without: AbstractSet[str]) -> set[str]:
        """Digests in the manifests of all runs that are not settled."""
        runs = set(await self._manifests.objects.folders("runs"))
        asked = {run_of(path) for path in without}
        for run_id, changes in list(self._settled.items()):
            if run_id not in runs or run_id in asked or changes != self._manifests.changes[run_id]:
                del self._settled[run_id]
                self._name(run_id, frozenset())

        async def named(run_id: str) -> frozenset[str]:
            return await self._of_run(run_id, without, may_settle=run_id not in asked)

        # In parallel: object storage is slow for each of many runs, and publishing waits meanwhile.
        return set[str]().union(*await map_bounded(named, runs - self._settled.keys(), _PARALLEL))

    async def _of_run(self, run_id: str, without: AbstractSet[str], *, may_settle: bool) -> frozenset[str]:
        may_settle = may_settle and run_id in self._over
        changes = self._manifests.changes[run_id]
        paths = set(await self._manifests.paths(run_id)) - without
        found = [await self._manifests.blobs(path) for path in paths]
        digests = frozenset[str]().union(*found)
        if may_settle and all(found):  # every manifest names blobs: one that names none could not be read
            self._settled[run_id] = changes
            self._name(run_id, digests)
        return digests

    def _update(self, key: str) -> None:
        value = self._records.get(key)
        run_id, _, name = key.partition(".")
        if name == ANNOTATIONS:
            return  # a digest in a user's text keeps no file
        self._name(key, digests_in(value) if value else frozenset())
        if name == "status":
            self._over.discard(run_id)
            if value and _is_final(value):
                self._over.add(run_id)

    def _name(self, source: str, digests: frozenset[str]) -> None:
        """Replaces the digests that `source` names."""
        self._named.subtract(self._digests.pop(source, ()))
        if digests:
            self._digests[source] = digests
            self._named.update(digests)


def _is_final(status: bytes) -> bool:
    try:
        return RunStatus.model_validate_json(status).state in FINAL_STATES
    except ValidationError:
        return False


async def delete_blobs(objects: ObjectStore, blobs: Collection[str]) -> None:
    """Deletes blobs, several at a time. When one fails or the caller is cancelled, no deletion goes on behind the caller's lock."""
    await map_bounded(lambda digest: run_to_end(objects.delete_blob(digest)), blobs, _PARALLEL)
