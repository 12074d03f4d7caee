"""Blobs that are about to be deleted, because no run names them. Whoever is about to name one keeps it first.

The weight store condemns a blob, and deletes it after a grace period unless it was kept or named meanwhile. So a caller that keeps a
blob, finds it stored and names it within the grace period never loses it: before the weight store deletes a blob it claims the key by
compare-and-set, and a caller that comes later waits until the blob is gone, and stores it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from gradbus.bus import Bucket, Conflict, View
from gradbus.control.runs import StoredModel
from gradbus.errors import StorageError

_WAIT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1


class Condemned(StoredModel):
    """`<hex of the digest>` in the bucket `condemned`: written by the weight store, removed by it and by whoever keeps the blob."""

    since_unix_ns: int
    deleting: bool = False
    """Whether the blob is being deleted at this moment: it cannot be kept any more."""


def key_of(digest: str) -> str:
    """The key of a blob."""
    return digest.removeprefix("sha256:")


class CondemnedBlobs:
    """Keeps blobs from being deleted."""

    def __init__(self, bucket: Bucket, known: View | None = None) -> None:
        """With `known`, a view of the bucket, a blob that is not condemned costs no request. The view may be behind by less than the grace
        period.
        """
        self._bucket = bucket
        self._known = known

    async def keep(self, digests: Iterable[str]) -> bool:
        """Makes sure that these blobs are not deleted soon. True if one was condemned: it may be gone, so store it again or look again.

        Raises StorageError if a deletion under way does not end, and errors of NATS.
        """
        keys = {key_of(digest) for digest in digests}
        if self._known is not None:
            keys &= self._known.entries.keys()
        return any(await asyncio.gather(*map(self._keep, keys)))

    async def _keep(self, key: str) -> bool:
        was_condemned = False
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while (entry := await self._bucket.get(key)) is not None:
                    was_condemned = True
                    if Condemned.model_validate_json(entry.value).deleting:
                        await asyncio.sleep(_POLL_SECONDS)
                        continue
                    try:
                        await self._bucket.purge(key, entry.revision)
                    except Conflict:
                        continue
                    return True
        except TimeoutError:
            raise StorageError(f"blob sha256:{key} is being deleted; see the weight store's log, and try again") from None
        return was_condemned
