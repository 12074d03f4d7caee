"""The workers that attested each version of a run, also those that hold a newer one by now: `attested.<run>` in the bucket `heads`.

Not `<run>.attested`: a conductor follows `<run>.*` and has no use for a thousand names a second.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from typing import Final

from gradbus.bus import Bucket, Conflict, OwnedKey
from gradbus.v1.weights_pb2 import Attestation

_MOST_BYTES: Final = 1 << 19
"""Half of what NATS takes as a value. Beyond it the oldest versions lose their holders."""
_Version = tuple[int, str]
"""Step and digest."""


class Holders:
    """Of one run. Written once a second: an attestation of the last second is lost with this process, unless its worker still holds it."""

    def __init__(self, heads: Bucket, run_id: str) -> None:
        self._heads = heads
        self._key = OwnedKey(heads, f"attested.{run_id}")
        self._run_id = run_id
        self._workers: dict[_Version, set[str]] = {}
        self._forgotten: set[_Version] = set()
        self.changed = False
        """Whether there is something to store."""

    def add(self, attestation: Attestation) -> None:
        """Remembers an attestation whose digest is the version's."""
        workers = self._workers.setdefault((attestation.step, attestation.digest), set())
        self.changed |= attestation.worker not in workers
        workers.add(attestation.worker)

    def forget(self, versions: AbstractSet[_Version]) -> None:
        """Forgets versions that retention deletes."""
        self._forgotten |= versions
        self.changed |= bool(versions)
        for version in versions:
            self._workers.pop(version, None)

    async def attestations(self) -> list[Attestation]:
        """All that this and other replicas remember, in order of steps and workers."""
        await self._merge()
        return [
            Attestation(run_id=self._run_id, worker=worker, step=step, digest=digest)
            for (step, digest), workers in sorted(self._workers.items())
            for worker in sorted(workers)
        ]

    async def store(self) -> None:
        """Writes what changed; what another replica writes at the same time is taken over by the next call."""
        if not self.changed:
            return
        await self._merge()
        if not self.changed:  # the run was deleted meanwhile
            return
        self.changed, written = False, set(self._forgotten)
        try:
            await self._key.replace(self._encoded())
        except Conflict:
            self.changed = True
        except BaseException:
            self.changed = True
            raise
        else:
            self._forgotten -= written

    async def delete(self) -> None:
        """Forgets the run."""
        self._workers, self.changed = {}, False
        await self._heads.purge(self._key.key)

    async def _merge(self) -> None:
        if not await self._key.refresh():
            return
        for step, digest, workers in json.loads(self._key.value or b"[]"):
            if (step, digest) not in self._forgotten:
                self._workers.setdefault((step, digest), set()).update(workers)

    def _encoded(self) -> bytes:
        while True:
            versions = sorted(self._workers)
            entries = [(step, digest, sorted(self._workers[step, digest])) for step, digest in versions]
            encoded = json.dumps(entries, separators=(",", ":")).encode()
            if len(encoded) <= _MOST_BYTES or len(versions) < 2:
                return encoded
            for version in versions[: len(versions) // 2]:
                del self._workers[version]
