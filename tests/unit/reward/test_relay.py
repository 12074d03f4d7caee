"""The relay between a gRPC channel and a user's scorer."""

import asyncio
import ipaddress
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gradbus.user_services.addresses import Endpoint
from gradbus.user_services.response_bounds import HEAD_BYTES
from gradbus_reward.scorers import relay as relays
from gradbus_reward.scorers.relay import Relay, remove_abandoned_folders

LOOPBACK = ipaddress.ip_address("127.0.0.1")


@asynccontextmanager
async def relayed(answer, addresses=(LOOPBACK,)):
    """A relay to a server that sends `answer` for each line; and a function that connects to the relay."""

    async def handle(reader, writer):
        while line := await reader.readline():
            writer.write(answer(line))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    relay = Relay(Endpoint("scorer", server.sockets[0].getsockname()[1], addresses))
    await relay.open()
    try:
        yield relay, lambda: asyncio.open_unix_connection(relay.target.removeprefix("unix:"))
    finally:
        await relay.close()
        server.close()


async def ask(connect, line):
    """What comes back first for a line; nothing if the connection is closed."""
    reader, writer = await connect()
    writer.write(line)
    found = await asyncio.wait_for(reader.read(1 << 20), 30)
    writer.close()
    return found


async def test_bytes_pass_both_ways_over_several_connections():
    async with relayed(bytes.upper) as (relay, connect):
        relay.allow(100)
        assert [await ask(connect, line) for line in (b"sun\n", b"moon\n")] == [b"SUN\n", b"MOON\n"]
        assert not relay.is_cut


async def test_an_address_that_refuses_gives_way_to_the_next():
    async with relayed(bytes.upper, (ipaddress.ip_address("127.0.0.9"), LOOPBACK)) as (relay, connect):
        relay.allow(100)
        assert await ask(connect, b"sun\n") == b"SUN\n"


async def test_nothing_at_the_address_closes_the_connection():
    relay = Relay(Endpoint("scorer", 9, (LOOPBACK,)))
    await relay.open()
    assert await ask(lambda: asyncio.open_unix_connection(relay.target.removeprefix("unix:")), b"sun\n") == b""
    await relay.close()


@pytest.mark.parametrize("response", [100_000, 8 << 20], ids=["near the bound", "long before the bound"])
async def test_a_caller_that_reads_nothing_is_cut_off_too(monkeypatch, response):
    """gRPC reads nothing while its answers wait for a scorer that does not read: the connection would stay until the deadline."""
    monkeypatch.setattr(relays, "_STALLED_SECONDS", 0.5)
    async with relayed(lambda _: bytes(32 << 20)) as (relay, _):
        relay.allow(response)
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(relay.target.removeprefix("unix:"))
        caller.sendall(b"much\n")
        for _ in range(3000):
            if relay.is_cut and not relay._connections:
                break
            await asyncio.sleep(0.01)
        with pytest.raises(ConnectionError):
            caller.sendall(b"more")
        caller.close()
        assert relay.is_cut


@pytest.mark.parametrize("size", [HEAD_BYTES + 1, 10 * HEAD_BYTES])
async def test_more_than_the_calls_need_closes_the_connection_until_the_next_call(size):
    async with relayed(lambda line: bytes(size) if line == b"much\n" else line) as (relay, connect):
        relay.allow(0)
        reader, writer = await connect()
        writer.write(b"much\n")
        assert len(await asyncio.wait_for(reader.read(), 30)) <= HEAD_BYTES
        writer.close()
        assert relay.is_cut
        assert await ask(connect, b"sun\n") == b""
        relay.allow(0)
        assert not relay.is_cut
        assert await ask(connect, b"sun\n") == b"sun\n"


async def test_calls_at_the_same_time_may_have_their_responses_together():
    async with relayed(lambda _line: bytes(2 * HEAD_BYTES)) as (relay, connect):
        relay.allow(0)
        relay.allow(0)
        reader, writer = await connect()
        writer.write(b"much\n")
        assert len(await asyncio.wait_for(reader.readexactly(2 * HEAD_BYTES), 30)) == 2 * HEAD_BYTES
        writer.close()


async def test_what_was_sent_before_the_end_of_a_connection_arrives():
    async def handle(reader, writer):
        await reader.readline()
        writer.write(bytes(HEAD_BYTES))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    relay = Relay(Endpoint("scorer", server.sockets[0].getsockname()[1], (LOOPBACK,)))
    await relay.open()
    relay.allow(0)
    reader, writer = await asyncio.open_unix_connection(relay.target.removeprefix("unix:"))
    writer.write(b"\n")
    assert len(await asyncio.wait_for(reader.read(), 30)) == HEAD_BYTES
    writer.close()
    await relay.close()
    server.close()


async def test_a_closed_relay_leaves_no_connection_no_task_and_no_file():
    async with relayed(bytes.upper) as (relay, connect):
        relay.allow(100)
        reader, writer = await connect()
        writer.write(b"sun\n")
        assert await reader.readline() == b"SUN\n"
        await relay.close()
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        assert not Path(relay.target.removeprefix("unix:")).parent.exists()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("relay")]


KILLED = """
import ipaddress, os, signal
from gradbus_reward.scorers import relay as relays
from gradbus.user_services.addresses import Endpoint
from gradbus_reward.scorers.relay import Relay

relay = Relay(Endpoint("scorer", 1, (ipaddress.ip_address("127.0.0.1"),)))
print(relay.target.removeprefix("unix:"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_the_folder_of_a_process_that_was_killed_is_removed_and_that_of_a_living_one_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, env=environment, stdout=subprocess.PIPE)
    abandoned = Path((await killed.communicate())[0].decode().strip()).parent
    assert abandoned.parent == tmp_path
    assert abandoned.exists()
    async with relayed(bytes.upper) as (relay, connect):
        remove_abandoned_folders()
        assert not abandoned.exists()
        relay.allow(100)
        assert await ask(connect, b"sun\n") == b"SUN\n"
    assert list(tmp_path.iterdir()) == []
