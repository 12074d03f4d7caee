"""Files that each key has uploaded: `uploads.<key>.<hash>` in the bucket `runs` holds a file's size."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import Message, Receive

from gradbus.aio.tasks import map_bounded
from gradbus.bus import Bucket, View
from gradbus.objects import ObjectStore
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.quotas.disk_room import check_room
from gradbus_gateway.quotas.exceeded import quota_exceeded
from gradbus_gateway.settings import Quotas

UPLOADS: Final = "uploads.*.*"
_ALGORITHM: Final = "sha256:"
_LOOK_AGAIN_SECONDS: Final = 60.0
_AT_A_TIME: Final = 16
_LOOK_EVERY_BYTES: Final = 64 << 20
"""How often the room on the disk is looked at."""


class UploadQuota:
    """Counts files for the key that uploaded them, once for each key.

    Files that no run names are deleted after a while by the weight store, which knows nothing of keys. They are counted until their key
    meets its quota; then the gateway looks which of its files are still stored.
    """

    def __init__(self, bucket: Bucket, view: View, objects: ObjectStore, quotas: Quotas) -> None:
        """`view` has the keys `UPLOADS` of `bucket`."""
        self._bucket = bucket
        self._view = view
        self._objects = objects
        self._quotas = quotas
        self._files: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """The records of each key, with the size of the file."""
        self._bytes: Counter[str] = Counter()
        """Sum of these sizes, by key."""
        self._arriving: Counter[str] = Counter()
        """Bytes of uploads in progress, by key."""
        self._looked_at: dict[str, float] = {}
        view.listen(self._update)

    @asynccontextmanager
    async def upload(self, key_id: str) -> AsyncIterator[Upload]:
        """An upload of a key, inside the block. Raises the problem 403 if the key has all that it may have."""
        if self.room(key_id) <= 0:
            await self._forget_deleted(key_id)
        if self.room(key_id) <= 0:
            raise self.exceeded(key_id)
        upload = Upload(self, key_id)
        try:
            yield upload
        finally:
            self._arriving[key_id] -= upload.bytes
            if not self._arriving[key_id]:
                del self._arriving[key_id]

    def arrived(self, key_id: str, more: int) -> None:
        """Counts bytes of an upload in progress."""
        self._arriving[key_id] += more

    def exceeded(self, key_id: str) -> ProblemError:
        """The problem for a key that would have more than it may."""
        files, quotas = self._files[key_id], self._quotas
        return quota_exceeded(
            key_id,
            f"key {key_id} has uploaded {len(files)} files of {self._bytes[key_id]} bytes and may have {quotas.uploaded_files} of "
            f"{quotas.uploaded_bytes}; delete runs that name files, or ask the operator to raise GRADBUS_QUOTA_UPLOADED_BYTES or "
            "GRADBUS_QUOTA_UPLOADED_FILES",
        )

    async def record(self, key_id: str, digest: str, size: int) -> None:
        """Counts a stored file of `size` bytes for the key that uploaded it."""
        name = f"uploads.{key_id}.{digest.removeprefix(_ALGORITHM)}"
        if self._view.get(name) is None:
            await self._bucket.put(name, str(size).encode())
            await self._view.catch_up()  # the key's next upload counts it

    def room(self, key_id: str) -> float:
        """Bytes that the key may still upload, beyond those that arrive now; 0 or less if it may upload no file."""
        if self._quotas.uploaded_files and len(self._files[key_id]) >= self._quotas.uploaded_files:
            return 0
        return self._quotas.uploaded_bytes - self._bytes[key_id] - self._arriving[key_id] if self._quotas.uploaded_bytes else math.inf

    def _update(self, name: str) -> None:
        key_id = name.split(".")[1]
        files, record = self._files[key_id], self._view.get(name)
        self._bytes[key_id] -= files.pop(name, 0)
        if record is not None:
            files[name] = int(record) if record.isdigit() else 0
            self._bytes[key_id] += files[name]

    async def _forget_deleted(self, key_id: str) -> None:
        """Removes the records of files that are not stored any more; once a minute at most, because it asks for each file."""
        now = time.monotonic()
        if now - self._looked_at.get(key_id, -_LOOK_AGAIN_SECONDS) < _LOOK_AGAIN_SECONDS:
            return
        self._looked_at[key_id] = now
        await map_bounded(self._forget_if_deleted, list(self._files[key_id]), _AT_A_TIME)
        await self._view.catch_up()

    async def _forget_if_deleted(self, name: str) -> None:
        if not await self._objects.has_blob(_ALGORITHM + name.rpartition(".")[2]):
            await self._bucket.delete(name)


class Upload:
    """One upload in progress. All that arrives for a key counts together, so that uploads at the same time get no more than one alone."""

    def __init__(self, quota: UploadQuota, key_id: str) -> None:
        self._quota = quota
        self._key_id = key_id
        self.bytes = 0
        """That arrived so far; 0 again once the file is stored."""

    def count(self, more: int) -> None:
        """Counts `more` bytes that arrive. Raises the problem 403 if the key would have more than it may."""
        self.bytes += more
        self._quota.arrived(self._key_id, more)
        if self._quota.room(self._key_id) < 0:
            raise self._quota.exceeded(self._key_id)

    def counted(self, receive: Receive) -> Receive:
        """`receive`, which counts every piece of the body before it passes it on. It raises the problems 403, and 507 on a full disk."""
        looked_at = 0

        async def counting() -> Message:
            nonlocal looked_at
            message = await receive()
            self.count(len(message.get("body", b"")))
            if self.bytes - looked_at > _LOOK_EVERY_BYTES:
                looked_at = self.bytes
                check_room(0)
            return message

        return counting

    async def stored(self, digest: str, size: int) -> None:
        """Counts the stored file of `size` bytes for its key, in place of what arrived."""
        self._quota.arrived(self._key_id, -self.bytes)
        self.bytes = 0
        await self._quota.record(self._key_id, digest, size)
