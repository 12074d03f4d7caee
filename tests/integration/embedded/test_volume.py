"""NATS is restarted automatically after its volume was full."""

import asyncio

import pytest

from gradbus.embedded import Stack, watches

from .test_life import until

GIB = 1 << 30


class Volume:
    """A volume whose free space the test sets; `looks` counts the queries since."""

    def __init__(self):
        self.free = 10 * GIB
        self.looks = 0

    def ask(self, _folder):
        self.looks += 1
        return self.free

    async def has(self, free):
        """Sets the free space and waits until the supervisor has seen it."""
        self.free, self.looks = free, 0
        await until(lambda: self.looks >= 2)


@pytest.fixture
def disk(monkeypatch):
    disk = Volume()
    monkeypatch.setattr(watches, "_free_bytes", disk.ask)
    monkeypatch.setattr(watches, "_VOLUME_SECONDS", 0.02)
    return disk


async def test_nats_is_started_again_once_its_full_volume_has_room_for_it(stack_config, disk):
    async with Stack(stack_config()) as stack:
        nats = stack.processes["nats"]
        before = nats.pid
        await disk.has(2 * GIB)
        await disk.has(0)
        await disk.has(2 * GIB)
        assert (nats.pid, nats.restarts) == (before, 0), "it would start, and find too little for its streams"
        await disk.has(4 * GIB)
        await until(lambda: nats.restarts == 1)
        await stack.until_ready(["nats"], 60.0)
        await disk.has(10 * GIB)
        assert nats.restarts == 1, "once for each time the volume was full"
        assert {name for name, process in stack.processes.items() if process.restarts} == {"nats"}
        await disk.has(0)
        await disk.has(4 * GIB)
        await until(lambda: nats.restarts == 2)


async def test_a_volume_with_room_is_let_alone(stack_config, disk):
    async with Stack(stack_config()) as stack:
        await disk.has(2 * GIB)
        await disk.has(4 * GIB)
        await asyncio.sleep(0.1)
        assert {process.restarts for process in stack.processes.values()} == {0}
