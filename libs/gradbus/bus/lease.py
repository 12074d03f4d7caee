"""Leases with terms. A lease alone does not stop an old holder: every write carries the term, and the resource checks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus.kv import Bucket, Conflict
from gradbus.bus.subjects import LEASE_TTL_SECONDS
from gradbus.telemetry import PROCESS, get_logger

_log = get_logger(__name__)


class Lease:
    """Held from `acquire` until `lost` is set or `release` is called. The `term` of a key only grows."""

    def __init__(self, bucket: Bucket, key: str, value: bytes, revision: int) -> None:
        self._bucket = bucket
        self._value = value
        self._revision = revision
        self.key = key
        self.term = revision
        self.lost = asyncio.Event()
        self._count(1)
        self._renewal = asyncio.create_task(self._renew(), name=f"lease {key}")

    @classmethod
    async def acquire(cls, bucket: Bucket, key: str, holder: str) -> Lease | None:
        """The lease, or None while another holder has it.

        A process that restarts under its own name takes its lease over at once, under a new term.
        """
        # The nonce makes the value unique, so that a stored value tells whose write it was.
        value = json.dumps({"holder": holder, "nonce": secrets.token_hex(8)}).encode()
        try:
            current = await bucket.get(key)
            if current is None:
                return cls(bucket, key, value, await bucket.create(key, value))
            if json.loads(current.value)["holder"] == holder:
                return cls(bucket, key, value, await bucket.update(key, value, current.revision))
        except Conflict:
            return None
        return None

    async def release(self) -> None:
        """Gives the lease back, so that the next holder need not wait until it expires."""
        await cancel_and_wait(self._renewal)
        if not self.lost.is_set():
            self.lost.set()
            self._count(-1)
            with contextlib.suppress(Conflict, NatsError, APIError, TimeoutError):
                current = await self._bucket.get(self.key)
                if current is not None and current.value == self._value:
                    await self._bucket.delete(self.key, current.revision)

    async def _renew(self) -> None:
        clock = asyncio.get_running_loop().time
        renewed = clock()
        while True:
            await asyncio.sleep(LEASE_TTL_SECONDS / 5)
            try:
                self._revision = await self._update()
                renewed = clock()
            except Conflict:
                break
            except (NatsError, APIError, TimeoutError) as error:
                _log.info("lease_not_renewed", key=self.key, error=f"{type(error).__name__}: {error}")
                if clock() - renewed > LEASE_TTL_SECONDS:
                    break
        _log.warning("lease_lost", key=self.key, term=self.term)
        self.lost.set()
        self._count(-1)
        PROCESS.count("gradbus.leases.lost")

    def _count(self, change: int) -> None:
        """Counts leases by the part of the key before the dot: `conductor` or `trainer`."""
        PROCESS.count("gradbus.leases.held", change, {"gradbus.lease": self.key.partition(".")[0]})

    async def _update(self) -> int:
        try:
            return await self._bucket.update(self.key, self._value, self._revision)
        except Conflict:
            # An earlier renewal may have been stored although its answer was lost.
            current = await self._bucket.get(self.key)
            if current is None or current.value != self._value:
                raise
            return current.revision
