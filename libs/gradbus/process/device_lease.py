"""The lease of a device: of the processes that use one accelerator in turns, at most one has memory on it.

A term cannot protect a device's memory, which checks no writes. So a holder whose lease runs out is killed, before the key expires:
only the end of a process frees what it allocated.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import run_to_end
from gradbus.bus import Bucket, Buckets, Bus, Lease
from gradbus.bus.subjects import LEASE_TTL_SECONDS
from gradbus.control.runs import WorkerPresence
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_LOOKS: Final = 100
"""Looks at the keys within the time to live."""
_CHECKS: Final = 20
"""Looks at the holder's own clock within the time to live."""
_LAST: Final = 0.8
"""Part of the time to live after which a lease that was not renewed has run out. The rest is for the end of the process."""
_NOT_IN_A_KEY: Final = re.compile(r"[^A-Za-z0-9_-]")
_UNREACHABLE = (NatsError, APIError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Contender:
    """A process that takes turns on a device."""

    name: str
    """Unique to the process: one that is started again must wait until the lease of the one before has expired."""
    goes_first: bool
    """Whether it is let in before those that are not: a trainer asks only when a step can be trained."""

    def to_bytes(self) -> bytes:
        """As stored in the key `wanted.<device>`."""
        return json.dumps({"holder": self.name, "goes_first": self.goes_first}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Contender:
        """The reverse of `to_bytes`."""
        fields = json.loads(value)
        return cls(fields["holder"], fields["goes_first"])


def device_name(device: str, given: str = "") -> str:
    """The name under which the processes of this machine share torch's `device`: `given` if it is set, else machine and device."""
    kind, _, number = device.partition(":")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",") if kind == "cuda" else [""]
    index = int(number or 0)
    chosen = visible[index] if index < len(visible) and visible[index] else str(index)
    return _NOT_IN_A_KEY.sub("-", given or f"{socket.gethostname()}-{kind}-{chosen}")


def end_process() -> None:
    """Kills this process at once; what it launched ends with it."""
    os.kill(os.getpid(), signal.SIGKILL)


class DeviceLease:
    """This process's turns on one device. It allocates memory there only from `take` until `give_back`, after it has freed it."""

    def __init__(
        self, leases: Bucket, device: str, contender: Contender, ttl: float = LEASE_TTL_SECONDS, end: Callable[[], None] = end_process
    ) -> None:
        """`ttl` is the time to live of the bucket. `end` is called, in a thread, if the lease runs out while it is held."""
        self._leases = leases
        self._contender = contender
        self._ttl = ttl
        self._end = end
        self._lease: Lease | None = None
        self._given_back = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._asked = 0.0
        self._held_key, self._wanted_key = f"device.{device}", f"wanted.{device}"

    @classmethod
    async def of(cls, bus: Bus, device: str, presence: WorkerPresence) -> DeviceLease:
        """The lease of a worker on the device of that name."""
        contender = Contender(f"{presence.worker}.{presence.incarnation}", goes_first=presence.role == "trainer")
        return cls(await bus.bucket(Buckets.LEASES), device, contender)

    @property
    def is_held(self) -> bool:
        """Whether this process has the device."""
        return self._lease is not None

    @property
    def term(self) -> int:
        """Fencing number of the turn; 0 without one. It only grows."""
        return self._lease.term if self._lease is not None else 0

    async def take(self) -> None:
        """Returns when this process has the device; at once if it has it already. Waits for as long as another one has it."""
        while self._lease is None:
            try:
                if (lease := await self._acquire_or_ask()) is not None:
                    self._hold(lease)
                    await self._withdraw_wish()
                    return
            except _UNREACHABLE as error:
                _log.info("device_lease_unreachable", key=self._held_key, error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._ttl / _LOOKS)

    async def give_back(self) -> None:
        """Lets the next process have the device. This process must have freed its memory there.

        A cancelled caller waits for that too: otherwise the next process would wait until the lease expires.
        """
        if self._lease is not None:
            lease, self._lease = self._lease, None
            self._given_back.set()
            await run_to_end(lease.release())

    def give_back_from_thread(self) -> None:
        """`give_back`, called in another thread than that of the event loop; does nothing if the device is not held."""
        if self._lease is not None:
            asyncio.run_coroutine_threadsafe(self.give_back(), self._loop).result()

    async def wanted(self, is_idle: Callable[[], bool]) -> None:
        """Returns when the holder should give the device back: to one that goes first, or to any other while `is_idle()`."""
        while True:
            try:
                wish = await self._wish()
                if wish is not None and wish.name != self._contender.name and (wish.goes_first or is_idle()):
                    return
            except _UNREACHABLE as error:
                _log.info("device_lease_unreachable", key=self._wanted_key, error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._ttl / _LOOKS)

    async def _acquire_or_ask(self) -> Lease | None:
        """The lease, if it is free and nobody waits who is let in before this process; otherwise the wish for it is stored."""
        wish = await self._wish()
        is_own = wish is not None and wish.name == self._contender.name
        if wish is not None and not is_own and (wish.goes_first or not self._contender.goes_first):
            return None
        lease = await Lease.acquire(self._leases, self._held_key, self._contender.name, self._ttl)
        if lease is None and (not is_own or time.monotonic() - self._asked > self._ttl / 4):
            self._asked = time.monotonic()
            await self._leases.put(self._wanted_key, self._contender.to_bytes())
        return lease

    async def _wish(self) -> Contender | None:
        entry = await self._leases.get(self._wanted_key)
        return Contender.from_bytes(entry.value) if entry is not None else None

    async def _withdraw_wish(self) -> None:
        wish = await self._wish()
        if wish is not None and wish.name == self._contender.name:
            await self._leases.delete(self._wanted_key)

    def _hold(self, lease: Lease) -> None:
        self._lease, self._given_back, self._loop = lease, threading.Event(), asyncio.get_running_loop()
        threading.Thread(target=self._end_without_lease, args=(lease, self._given_back), name="device lease", daemon=True).start()

    def _end_without_lease(self, lease: Lease, given_back: threading.Event) -> None:
        """In a thread, because the event loop may stand still."""
        while not given_back.wait(self._ttl / _CHECKS):
            if lease.lost.is_set() or time.monotonic() > lease.renewed + _LAST * self._ttl:
                if not given_back.is_set():
                    _log.critical("device_lease_ran_out", key=lease.key, term=lease.term, advice="the process ends: start it again")
                    self._end()
                return
