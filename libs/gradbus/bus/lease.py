"""Leases with terms. A lease alone does not stop an old holder: every write carries the term, and the resource checks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import time
from dataclasses import dataclass
from functools import cache
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus.kv import Bucket, Conflict
from gradbus.bus.subjects import LEASE_TTL_SECONDS
from gradbus.telemetry import PROCESS, get_logger

_log = get_logger(__name__)
_PAUSE: Final = 0.2
"""Parts of the time to live: between two renewals, after one that failed, and until the server must have answered one."""
_PAUSE_AFTER_FAILURE: Final = 0.02
_ANSWER: Final = 0.3


@dataclass(frozen=True, slots=True)
class _Write:
    """The value by which a holder takes a key."""

    bucket: Bucket
    key: str
    value: bytes
    ttl: float


class Lease:
    """Held from `acquire` until `lost` is set or `release` is called. The `term` of a key only grows."""

    def __init__(self, write: _Write, revision: int, renewed: float) -> None:
        self._bucket = write.bucket
        self._value = write.value
        self._ttl = write.ttl
        self._revision = revision
        self.key = write.key
        self.term = revision
        self.renewed = renewed
        """Monotonic time, just before the newest write that the server took: the server lets the key expire `ttl` seconds after it."""
        self.lost = asyncio.Event()
        self._count(1)
        self._renewal = asyncio.create_task(self._renew(), name=f"lease {self.key}")

    @classmethod
    async def acquire(cls, bucket: Bucket, key: str, holder: str, ttl: float = LEASE_TTL_SECONDS) -> Lease | None:
        """The lease, or None while another holder has it. `ttl` is the bucket's time to live.

        A process that restarts under its own name takes its lease over at once, under a new term.
        """
        # The nonce makes the value unique, so that a stored value tells whose write it was.
        write = _Write(bucket, key, json.dumps({"holder": holder, "nonce": secrets.token_hex(8)}).encode(), ttl)
        try:
            current = await bucket.get(key)
            began = time.monotonic()
            if current is None:
                return cls(write, await bucket.create(key, write.value), began)
            if json.loads(current.value)["holder"] == holder:
                return cls(write, await bucket.update(key, write.value, current.revision), began)
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
        """An answer that is lost must not cost the lease: the next attempt comes before the holder of a device would be killed."""
        pause = _PAUSE
        while True:
            seconds = pause * self._ttl
            await asyncio.sleep(seconds * (1 - (time.monotonic() / seconds + _phase()) % 1))
            began, pause = time.monotonic(), _PAUSE_AFTER_FAILURE
            try:
                async with asyncio.timeout(_ANSWER * self._ttl):
                    if await self._is_written():
                        self.renewed, pause = began, _PAUSE
            except Conflict:
                break
            except (NatsError, APIError, TimeoutError) as error:
                _log.info("lease_not_renewed", key=self.key, error=f"{type(error).__name__}: {error}")
                if time.monotonic() - self.renewed > self._ttl:
                    break
        _log.warning("lease_lost", key=self.key, term=self.term)
        self.lost.set()
        self._count(-1)
        PROCESS.count("gradbus.leases.lost")

    def _count(self, change: int) -> None:
        """Counts leases by the part of the key before the dot: `conductor`, `trainer` or `device`."""
        PROCESS.count("gradbus.leases.held", change, {"gradbus.lease": self.key.partition(".")[0]})

    async def _is_written(self) -> bool:
        """Writes the value again. False if an earlier renewal was stored although its answer was lost: the next one follows it."""
        try:
            self._revision = await self._bucket.update(self.key, self._value, self._revision)
        except Conflict:
            current = await self._bucket.get(self.key)
            if current is None or current.value != self._value:
                raise
            self._revision = current.revision
            return False
        return True


@cache
def _phase() -> float:
    """Part of a pause. Leases of a process are renewed at one time, so they share a synced write; those of other processes at another."""
    return random.random()
