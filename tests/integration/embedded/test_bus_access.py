"""Each user of NATS can do all its work with its own allow-list, and every other subject is refused at once and by name."""

import asyncio
import socket
import subprocess
import time

import nats
import pytest
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError

from gradbus.access import NATS_USERS
from gradbus.bus import Buckets, Bus, BusSettings, EventLog, Lease, TaskQueue, subjects
from gradbus.deploy.credentials import Credentials
from gradbus.embedded.servers import nats_command
from gradbus.embedded.state import StateFolder
from gradbus.v1.task_pb2 import Task

RUN = "run-1"
LAST = "nobody.may"
WORDS = {"publish": "publish", "subscribe": "subscription"}
# (subject, who may publish to it): every key pattern, stream and hint, and subjects that no role may use.
PUBLISHERS = {
    f"$KV.runs.{RUN}.spec": {"gateway", "conductor"},
    f"$KV.runs.{RUN}.desired": {"gateway", "conductor"},
    "$KV.runs.idempotency.key.k": {"gateway", "conductor"},
    f"$KV.runs.{RUN}.status": {"conductor"},
    f"$KV.runs.{RUN}.evaluations": {"conductor"},
    f"$KV.runs.{RUN}.invented": set(),
    "$KV.workers.rollout-0": {"rollout", "trainer"},
    "$KV.assignments.rollout-0": {"conductor"},
    f"$KV.leases.conductor.{RUN}": {"conductor"},
    f"$KV.leases.trainer.{RUN}": {"trainer"},
    "$KV.leases.device.gpu": {"rollout", "trainer"},
    "$KV.leases.wanted.gpu": {"rollout", "trainer"},
    f"$KV.heads.{RUN}.version": {"weight_store"},
    f"$KV.heads.{RUN}.checkpoint": {"weight_store"},
    f"$KV.heads.{RUN}.term": {"weight_store"},
    f"$KV.probes.{RUN}": {"rollout", "conductor"},
    "$KV.condemned.0f": {"weight_store", "gateway", "conductor"},
    f"prompts.{RUN}": {"conductor"},
    f"events.{RUN}": {"conductor", "trainer", "weight_store"},
    f"groups.{RUN}": {"rollout"},
    f"broadcasts.{RUN}": {"weight_store"},
    f"missing.{RUN}": {"trainer"},
    "$JS.API.STREAM.MSG.GET.KV_leases": {"conductor", "rollout", "trainer"},
    "$JS.API.DIRECT.GET.KV_leases.$KV.leases.conductor.run": {"conductor", "rollout", "trainer"},
    "$JS.API.STREAM.MSG.GET.EVENTS": set(),
    "$JS.API.CONSUMER.CREATE.EVENTS": {"gateway"},
    f"$JS.API.CONSUMER.MSG.NEXT.PROMPTS.rollout-{RUN}": {"rollout"},
    f"$JS.ACK.PROMPTS.rollout-{RUN}.1.1.1.1.1": {"rollout"},
    "$JS.API.STREAM.PURGE.PROMPTS": {"conductor"},
    "$JS.API.STREAM.PURGE.EVENTS": {"conductor"},
    "$JS.API.STREAM.PURGE.KV_heads": set(),
    "$JS.API.STREAM.DELETE.KV_heads": set(),
    "$JS.API.STREAM.UPDATE.KV_heads": set(),
    "$JS.API.STREAM.MSG.DELETE.KV_heads": set(),
    "$JS.API.STREAM.CREATE.OTHER": set(),
    "$SYS.REQ.SERVER.PING": set(),
    "anything": set(),
    **{f"_INBOX_{role}.answer": set() for role in NATS_USERS},
}
HEARERS = {
    f"groups.{RUN}": {"conductor"},
    f"broadcasts.{RUN}": {"rollout"},
    f"missing.{RUN}": {"conductor"},
    f"prompts.{RUN}": set(),
    f"events.{RUN}": set(),
    "$KV.>": set(),
    "$JS.>": set(),
    "_INBOX.>": set(),
    "_INBOX_trainer.*.*": {"trainer"},
    ">": set(),
    **{f"_INBOX_{role}.>": {role} for role in NATS_USERS},
}


@pytest.fixture
def server(tmp_path, free_port):
    """NATS as the embedded stack configures it, with the settings of each user."""
    state = StateFolder(tmp_path)
    state.lock()
    credentials = Credentials(state.secrets)
    port = free_port()
    process = subprocess.Popen(nats_command(state, credentials, port), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert process.poll() is None
        assert time.monotonic() < deadline, "nats-server does not listen"
        time.sleep(0.05)
    yield {role: BusSettings(f"nats://127.0.0.1:{port}", role, credentials.nats_password(role)) for role in NATS_USERS}
    process.kill()
    process.wait()
    state.unlock()


class Caller:
    """A bare client of one user, with the subjects that the server refused."""

    def __init__(self, settings):
        self._settings = settings
        self.refused = []
        self.last = asyncio.Event()

    async def __aenter__(self):
        one = self._settings
        prefix = subjects.inbox(one.user)
        self.client = await nats.connect(one.url, user=one.user, password=one.password, inbox_prefix=prefix, error_cb=self._note)
        return self

    async def __aexit__(self, *_):
        await self.client.close()

    async def _note(self, error):
        self.refused.append(str(error))
        if LAST in str(error):
            self.last.set()

    async def refused_of(self, verb, wanted):
        """The subjects in `wanted` that the server refuses. It answers in order, so the subject that no role may use comes last."""
        for subject in [*wanted, LAST]:
            await (self.client.publish(subject, b"x") if verb == "publish" else self.client.subscribe(subject))
        await asyncio.wait_for(self.last.wait(), 60)
        reported = {f'nats: permissions violation for {WORDS[verb]} to "{subject.lower()}"': subject for subject in wanted}
        return {reported[one] for one in self.refused if one in reported}


@pytest.fixture
async def buses(server):
    """A bus of each user, with all refusals."""
    refused = []

    async def note(error):
        refused.append(str(error))

    made = {role: await Bus.connect(settings, role) for role, settings in server.items()}
    for bus in made.values():
        bus.client._error_cb = note
    yield made, refused
    for bus in made.values():
        await bus.close()


@pytest.mark.parametrize("verb", ["publish", "subscribe"])
async def test_a_user_may_do_what_the_table_says_and_is_told_of_all_else(server, verb):
    table = PUBLISHERS if verb == "publish" else HEARERS
    allowed = {subject: set() for subject in table}
    for role, settings in server.items():
        async with Caller(settings) as caller:
            for subject in table.keys() - await caller.refused_of(verb, table):
                allowed[subject].add(role)
    assert allowed == table


async def test_making_a_bucket_that_is_there_changes_nothing(buses):
    heads = (await buses[0]["weight_store"].bucket(Buckets.HEADS))._store
    before = (await heads.status()).stream_info.config
    with pytest.raises(BadRequestError, match="already in use"):
        await buses[0]["rollout"].jetstream.add_stream(StreamConfig(name="KV_heads", subjects=["$KV.heads.>", "stolen.>"]))
    assert (await heads.status()).stream_info.config == before


async def test_keys_are_read_written_leased_and_watched_by_those_who_need_them(buses):
    made, refused = buses
    runs, status = await made["gateway"].bucket(Buckets.RUNS), await made["conductor"].bucket(Buckets.RUNS)
    await runs.create(f"{RUN}.spec", b"spec")
    await runs.update(f"{RUN}.desired", b"new", await runs.create(f"{RUN}.desired", b"old"))
    await status.put(f"{RUN}.status", b"running")
    for role in ("gateway", "conductor", "rollout", "trainer", "reference", "weight_store", "supervisor"):
        bucket = await made[role].bucket(Buckets.RUNS)
        assert (await bucket.get(f"{RUN}.desired")).value == b"new"
        async with bucket.view("*.*") as view:
            assert view.entries == {f"{RUN}.spec": b"spec", f"{RUN}.desired": b"new", f"{RUN}.status": b"running"}, role
    for role in ("rollout", "trainer"):
        workers = await made[role].bucket(Buckets.WORKERS)
        await workers.put(f"{role}-0.host", b"here")
        async with (await made["conductor"].bucket(Buckets.WORKERS)).view() as view:
            assert view.get(f"{role}-0.host") == b"here"
        await workers.delete(f"{role}-0.host")
    for role in ("conductor", "trainer"):
        lease = await Lease.acquire(await made[role].bucket(Buckets.LEASES), f"{role}.{RUN}", "holder")
        await lease.release()
        again = await Lease.acquire(await made[role].bucket(Buckets.LEASES), f"{role}.{RUN}", "other")
        assert again.term > lease.term
        await again.release()
    heads = await made["weight_store"].bucket(Buckets.HEADS)
    await heads.create(f"{RUN}.version", b"7")
    async with (await made["rollout"].bucket(Buckets.HEADS)).view(f"{RUN}.version") as view:
        assert view.get(f"{RUN}.version") == b"7"
    assert refused == []


async def test_tasks_are_dispatched_taken_acknowledged_and_removed(buses):
    made, refused = buses
    dispatched, taken = TaskQueue(made["conductor"], RUN), TaskQueue(made["rollout"], RUN)
    await dispatched.publish([Task(run_id=RUN, task_id=str(n)) for n in range(40)])
    got = []
    async with asyncio.timeout(60):
        while await dispatched.waiting() != 40:  # noqa: ASYNC110 - the server counts, it does not signal
            await asyncio.sleep(0.01)
        while len(got) < 40:
            got += [delivery.task.task_id for delivery in await taken.fetch(16)]
    assert got == [str(n) for n in range(40)]
    async with asyncio.timeout(60):  # the server does not report a refused acknowledgement
        while True:
            info = await made["conductor"].jetstream.consumer_info("PROMPTS", f"rollout-{RUN}")
            if info.num_ack_pending == 0:
                break
    assert await dispatched.waiting() == 0
    await dispatched.remove()
    assert refused == []


async def test_history_is_written_and_followed(buses):
    made, refused = buses
    for role in ("conductor", "trainer", "weight_store"):
        log = EventLog(made[role], RUN)
        log.emit("state", f"from {role}")
        await log.wait_until_stored()
    found = await EventLog(made["gateway"], RUN).read()
    assert [event.message for event in found] == ["from conductor", "from trainer", "from weight_store"]
    assert refused == []


async def test_a_long_history_is_read_at_its_readers_pace(buses):
    """Beyond a few megabytes the server waits for the reader's flow-control reply, which has its own subject."""
    made, refused = buses
    log = EventLog(made["trainer"], RUN)
    for _ in range(100):
        log.emit("metrics", "x" * 100_000)
    await log.wait_until_stored()
    async with asyncio.timeout(60):
        assert len(await EventLog(made["gateway"], RUN).read()) == 100
    assert refused == []


@pytest.mark.parametrize(
    ("sender", "hearer", "subject"),
    [
        ("rollout", "conductor", f"groups.{RUN}"),
        ("trainer", "conductor", f"missing.{RUN}"),
    ],
)
async def test_hints_arrive(buses, sender, hearer, subject):
    made, refused = buses
    heard = asyncio.Event()

    async def hear(_payload):
        heard.set()

    async with made[hearer].subscribed(subject, hear):
        async with asyncio.timeout(60):
            while not heard.is_set():  # the first may overtake the subscription
                await made[sender].publish(subject, b"hint")
                await asyncio.sleep(0.01)
    assert refused == []
