"""The device of a worker, which serves some runs in turns with another worker on it."""

from __future__ import annotations

from gradbus.bus import Bus
from gradbus.process.device_lease import DeviceLease, device_name
from gradbus.process.heartbeat import WorkerHeartbeat
from gradbus.spec import RunSpec


class WorkerDevice:
    """Has the device's lease from the first turn of an attempt at a run until `give_back`, but for the turns of others."""

    def __init__(self, bus: Bus, heartbeat: WorkerHeartbeat, device: str, given_name: str) -> None:
        """`device` is torch's, `given_name` its name as the operator set it; see `device_name`."""
        self._bus = bus
        self._heartbeat = heartbeat
        self._device, self._given_name = device, given_name
        self._lease: DeviceLease | None = None
        """Made for the first run that needs it."""

    @property
    def is_held(self) -> bool:
        """Whether this process has the lease."""
        return self._lease is not None and self._lease.is_held

    async def take_for(self, spec: RunSpec) -> DeviceLease | None:
        """The lease, if the run uses the device in turns. Waits until it is held, and says so: memory comes next."""
        if spec.rollout.placement != "timed":
            return None
        if self._lease is None:
            name = device_name(self._device, self._given_name)
            self._lease = await DeviceLease.of(self._bus, name, self._heartbeat.presence)
        if not self._lease.is_held:
            self._heartbeat.show_preparing("waits for its device, which another worker has")
            await self._lease.take()
            self._heartbeat.show_preparing("")
        return self._lease

    def give_back(self) -> None:
        """Lets the next worker have the device, whose memory is free. Called in another thread than that of the event loop."""
        if self._lease is not None:
            self._lease.give_back_from_thread()
