"""Turns of a trainer and an engine on one device: one computes, the other has left, and its state waits in host memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gradbus import crash_points
from gradbus.process.device_lease import DeviceLease


class DeviceTenant(Protocol):
    """What a process has on a device: an engine, or a learner."""

    async def release(self) -> None:
        """Stops computing and frees the device's memory; returns when it is free."""
        ...

    async def resume(self) -> None:
        """Takes the memory again and computes on, as if it had never left."""
        ...


class DeviceTurns:
    """The turns of one tenant. Without a lease the device is never left."""

    def __init__(self, lease: DeviceLease | None, tenant: DeviceTenant) -> None:
        """The tenant is on the device, and the lease is held."""
        self._lease = lease
        self._tenant = tenant
        self.is_on_device = True
        """False from the end of a turn to the beginning of the next."""
        self._switching = 0.0

    async def begin(self) -> None:
        """Returns when the tenant is on the device, after the other one has left."""
        if self._lease is not None and not self.is_on_device:
            with self._timed():
                await self._lease.take()
                self.is_on_device = True
                crash_points.reached("device-taken")
                await self._tenant.resume()
                crash_points.reached("device-resumed")

    async def end(self) -> None:
        """Lets the other tenant have the device."""
        if self._lease is not None and self.is_on_device:
            with self._timed():
                await self._tenant.release()
                self.is_on_device = False
                crash_points.reached("device-released")
                await self._lease.give_back()
                crash_points.reached("device-given-back")

    async def wanted(self, is_idle: Callable[[], bool]) -> None:
        """Returns when the tenant should leave; see `DeviceLease.wanted`."""
        if self._lease is None:
            await asyncio.Event().wait()
        else:
            await self._lease.wanted(is_idle)

    def switching_seconds(self) -> float | None:
        """Time spent in `begin` and `end` since this was last asked; None without turns."""
        seconds, self._switching = self._switching, 0.0
        return None if self._lease is None else seconds

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._switching += time.perf_counter() - began
