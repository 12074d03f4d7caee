"""Permissions at the servers, tested with each user's own credentials."""

from unittest.mock import AsyncMock

import pytest
import redis.exceptions

from gradbus.access import BUFFER_USERS
from gradbus.buffer import BufferSettings, keys, open_buffer
from gradbus.bus import Bus, BusSettings
from gradbus.control.runs import WorkerPresence
from gradbus.embedded import Stack
from gradbus.errors import SettingsError, SupersededError
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.v1.environment_service_pb2 import OpenResponse
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus_rollout.buffer_wait import BufferWait
from gradbus_rollout.episodes.journal import JournalPlace, Journals

RUN = "run-1"
PRESENCE = WorkerPresence(worker="worker", role="rollout", incarnation="1")
COMMANDS = {
    "call function": ["FCALL", "gradbus_open", "1", f"{{{RUN}}}:term", "0"],
    "known script": ["EVALSHA", "0" * 40, "0"],
    "keep script": ["SCRIPT", "LOAD", "return 1"],
    "any script": ["EVAL", "return 1", "0"],
    "load function": ["FUNCTION", "LOAD", "x"],
    "remove functions": ["FUNCTION", "FLUSH"],
    "follow log": ["XREAD", "COUNT", "1", "STREAMS", f"{{{RUN}}}:experience", "0-0"],
    "forge entry": ["XADD", f"{{{RUN}}}:experience", "*", "i", "0", "r", "x"],
    "trim": ["XTRIM", f"{{{RUN}}}:experience", "MAXLEN", "0"],
    "read bitmap": ["GETRANGE", f"{{{RUN}}}:admitted", "0", "1"],
    "set bitmap": ["SETBIT", f"{{{RUN}}}:admitted", "0", "1"],
    "raise term": ["SET", f"{{{RUN}}}:term", "9"],
    "put group": ["SET", f"{{{RUN}}}:assembly:1", "x", "NX"],
    "put and read group": ["SET", f"{{{RUN}}}:assembly:1", "x", "GET"],
    "put completion": ["SET", f"{{{RUN}}}:evaluation:1:1", "x", "NX"],
    "read group": ["MGET", f"{{{RUN}}}:assembly:1"],
    "remove group": ["DEL", f"{{{RUN}}}:assembly:1"],
    "take journal": ["FCALL", "gradbus_take_journal", "1", f"{{{RUN}}}:journal:1", "0", "holder", "name"],
    "journal over the log": ["FCALL", "gradbus_take_journal", "1", f"{{{RUN}}}:experience", "0", "holder", "name"],
    "read journal": ["HGETALL", f"{{{RUN}}}:journal:1"],
    "invent key": ["SET", f"{{{RUN}}}:invented", "x"],
    "foreign key": ["GET", "elsewhere"],
    "rename": ["RENAME", f"{{{RUN}}}:assembly:1", f"{{{RUN}}}:assembly:2"],
    "scan": ["SCAN", "0"],
    "size": ["MEMORY", "USAGE", f"{{{RUN}}}:experience"],
    "list keys": ["KEYS", "*"],
    "watch commands": ["MONITOR"],
    "copy all": ["SYNC"],
    "publish": ["PUBLISH", "channel", "x"],
    "flush": ["FLUSHALL"],
    "configure": ["CONFIG", "GET", "dir"],
    "read users": ["ACL", "LIST"],
    "shut down": ["SHUTDOWN", "NOSAVE"],
    "ping": ["PING"],
}
FOLLOW = {"follow log", "ping"}
WORK = {"call function", "forge entry", "trim", "read bitmap", "set bitmap", "raise term", "read group", "remove group", "scan", "size"}
PUT = {"put group", "put completion", "ping"}
ALLOWED = {
    "supervisor": {"ping", "load function"},
    # It may call the functions of journals, whose commands are refused to it.
    "conductor": WORK | FOLLOW | PUT | {"put and read group", "take journal", "journal over the log"},
    "rollout": PUT | {"take journal"},
    "trainer": FOLLOW,
    "gateway": FOLLOW,
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


async def opened():
    return OpenResponse()


async def may(client, command) -> bool:
    try:
        await client.execute_command(*command)
    except redis.exceptions.NoPermissionError:
        return False
    except redis.exceptions.ResponseError:  # allowed, but without effect here
        return True
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
        journals = Journals(clients["rollout"], BufferWait(PRESENCE), is_read=True, is_over=AsyncMock())
        journal = await journals.take(JournalPlace(keys.journal(RUN, 0), 0), "player", "train.0.0.0")
        await journal.opened(opened)
        await journal.begin_anew()
        log = ExperienceLog(clients["conductor"], RUN, journaled=True)
        await log.open_term(1)
        assert await log.append(1, {0: LogEntry(index=0)}) == [0]
        assert (await log.size())[0] == 1
        with pytest.raises(SupersededError, match="nobody"):
            await journal.begin_anew()
        entries = await ExperienceLog(clients["trainer"], RUN).read(wait_seconds=0.1)
        assert [entry.index for entry in entries] == [0]
        assert [entry.index for entry in await ExperienceLog(clients["gateway"], RUN).read()] == [0]
        assert await log.admitted(0, 8) == {0}
        await GroupStore(clients["rollout"], RUN).put_evaluation(3, [Group(run_id=RUN, index=1)])
        assert (await GroupStore(clients["conductor"], RUN).get_evaluation(3, [1]))[1].index == 1
        await GroupStore(clients["conductor"], RUN).discard_evaluation(3, [1])
        await log.delete(1, entries)
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
        await stack.until_ready(["buffer"], 60.0)
        assert await log.admitted(0, 64) == set(range(50))
        await client.aclose()


async def test_nats_admits_nobody_without_a_password(stack_config):
    async with Stack(stack_config()) as stack:
        url = bus_settings(stack, "gateway").url
        for settings in (BusSettings(url), BusSettings(url, "gateway", "wrong")):
            with pytest.raises(SettingsError):
                await Bus.connect(settings, "stranger", wait_seconds=1.0)
