"""Who may do what at the servers, tried with the users' own credentials."""

import asyncio

import pytest
import redis.exceptions

from gradbus.buffer import BufferSettings, ExperienceLog, GroupStore, open_buffer
from gradbus.bus import Bus, BusSettings
from gradbus.embedded import Stack
from gradbus.embedded.credentials import BUFFER_USERS, NATS_USERS
from gradbus.errors import SettingsError
from gradbus.v1.group_pb2 import Group, LogEntry

RUN = "run-1"
COMMANDS = {
    "append": ["EVAL", "return 1", "0"],
    "read log": ["XRANGE", f"{{{RUN}}}:experience", "-", "+"],
    "follow log": ["XREAD", "COUNT", "1", "STREAMS", f"{{{RUN}}}:experience", "0-0"],
    "forge entry": ["XADD", f"{{{RUN}}}:experience", "*", "i", "0", "r", "x"],
    "trim": ["XTRIM", f"{{{RUN}}}:experience", "MAXLEN", "0"],
    "read bitmap": ["GETRANGE", f"{{{RUN}}}:admitted", "0", "1"],
    "set bitmap": ["SETBIT", f"{{{RUN}}}:admitted", "0", "1"],
    "raise term": ["SET", f"{{{RUN}}}:term", "9"],
    "put group": ["SET", f"{{{RUN}}}:assembly:1", "x", "NX"],
    "read group": ["MGET", f"{{{RUN}}}:assembly:1"],
    "remove group": ["DEL", f"{{{RUN}}}:assembly:1"],
    "foreign key": ["GET", "elsewhere"],
    "scan": ["SCAN", "0"],
    "size": ["MEMORY", "USAGE", f"{{{RUN}}}:experience"],
    "flush": ["FLUSHALL"],
    "configure": ["CONFIG", "GET", "dir"],
    "read users": ["ACL", "LIST"],
    "shut down": ["SHUTDOWN", "NOSAVE"],
    "ping": ["PING"],
}
READ_LOG = {"read log", "follow log", "read bitmap", "ping"}
ALLOWED = {
    "supervisor": {"ping"},
    "conductor": COMMANDS.keys() - {"foreign key", "flush", "configure", "read users", "shut down"},
    "rollout": {"put group", "read group", "remove group", "ping"},
    "trainer": READ_LOG | {"size"},
    "gateway": READ_LOG | {"read group"},
}

OWNERS = {
    "heads": {"weight_store"},
    "runs": {"gateway", "conductor"},
    "assignments": {"conductor"},
    "workers": set(NATS_USERS),
    "leases": set(NATS_USERS),
}


def buffer_of(stack, user, password=None):
    port = stack.state.read("ports.json")["buffer"]
    secret = (stack.state.secrets / user / "gradbus_buffer_password").read_text() if password is None else password
    return open_buffer(BufferSettings(f"redis://127.0.0.1:{port}/0", user, secret))


def bus_settings(stack, user):
    port = stack.state.read("ports.json")["nats"]
    return BusSettings(f"nats://127.0.0.1:{port}", user, (stack.state.secrets / user / "gradbus_nats_password").read_text())


async def test_each_user_of_the_buffer_may_do_its_work_and_nothing_else(stack_config):
    async with Stack(stack_config()) as stack:
        for user in BUFFER_USERS:
            client = buffer_of(stack, user)
            allowed = {what for what, command in COMMANDS.items() if await may(client, command)}
            await client.aclose()
            assert allowed == ALLOWED[user], user


async def may(client, command) -> bool:
    try:
        await client.execute_command(*command)
    except redis.exceptions.NoPermissionError:
        return False
    return True


async def test_the_buffer_admits_nobody_without_a_password(stack_config):
    async with Stack(stack_config()) as stack:
        for user, password in (("", ""), ("default", ""), ("conductor", "wrong")):
            client = buffer_of(stack, user, password)
            with pytest.raises((redis.exceptions.AuthenticationError, redis.exceptions.ResponseError)):
                await client.ping()
            await client.aclose()


async def test_the_library_works_with_these_rights(stack_config):
    async with Stack(stack_config()) as stack:
        clients = {user: buffer_of(stack, user) for user in BUFFER_USERS}
        await GroupStore(clients["rollout"], RUN).put([Group(run_id=RUN, index=0)])
        assert (await GroupStore(clients["conductor"], RUN).get([0]))[0].run_id == RUN
        log = ExperienceLog(clients["conductor"], RUN)
        await log.open_term(1)
        assert await log.append(1, {0: LogEntry(index=0)}) == [0]
        assert (await log.size())[0] == 1
        entries = await ExperienceLog(clients["trainer"], RUN).read(wait_seconds=0.1)
        assert [entry.index for entry in entries] == [0]
        assert await ExperienceLog(clients["gateway"], RUN).admitted(0, 8) == {0}
        await log.forget(1, entries)
        await log.trim(entries[0].stream_id)
        await GroupStore(clients["conductor"], RUN).remove_run()
        for client in clients.values():
            await client.aclose()


async def test_acknowledged_entries_survive_a_killed_buffer(stack_config):
    async with Stack(stack_config()) as stack:
        client = buffer_of(stack, "conductor")
        log = ExperienceLog(client, RUN)
        await log.append(1, {index: LogEntry(index=index) for index in range(50)})
        await stack.kill("buffer")
        await stack.until_ready(["buffer"], 10.0)
        assert await log.admitted(0, 64) == set(range(50))
        await client.aclose()


async def test_only_its_owners_write_a_bucket(stack_config):
    async with Stack(stack_config()) as stack:
        for bucket, owners in OWNERS.items():
            wrote = await asyncio.gather(*(may_write(stack, user, bucket) for user in NATS_USERS))
            assert {user for user, did in zip(NATS_USERS, wrote, strict=True) if did} == owners, bucket


async def may_write(stack, user, bucket) -> bool:
    """NATS answers a write that is not allowed with silence."""
    bus = await Bus.connect(bus_settings(stack, user), user)
    opened = await bus.bucket(bucket)
    try:
        await asyncio.wait_for(opened.put(f"{user}.key", b"1"), 2.0)
    except TimeoutError:
        assert await opened.get(f"{user}.key") is None
        return False
    else:
        return True
    finally:
        await bus.close()


async def test_nats_admits_nobody_without_a_password(stack_config):
    async with Stack(stack_config()) as stack:
        url = bus_settings(stack, "gateway").url
        for settings in (BusSettings(url), BusSettings(url, "gateway", "wrong")):
            with pytest.raises(SettingsError):
                await Bus.connect(settings, "stranger", wait_seconds=1.0)
