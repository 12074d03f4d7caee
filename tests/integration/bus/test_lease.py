"""Leases on a real NATS."""

import asyncio
import sys
import time

import pytest
from nats.aio.client import Client

from gradbus.bus import Buckets, Conflict, Lease
from gradbus.bus.kv import Entry


@pytest.fixture
async def leases(bus):
    return await bus.bucket(Buckets.LEASES)


def renewed(leases, lease):
    async def check():
        return (await leases.get(lease.key)).revision > lease.term

    return check


async def test_one_of_many_gets_it(leases, unique):
    got = await asyncio.gather(*(Lease.acquire(leases, unique, str(n)) for n in range(6)))
    held = [lease for lease in got if lease is not None]
    assert len(held) == 1
    await held[0].release()


async def test_a_released_lease_goes_to_the_next_holder_under_a_higher_term(leases, unique):
    first = await Lease.acquire(leases, unique, "a")
    assert await Lease.acquire(leases, unique, "b") is None
    await first.release()
    assert first.lost.is_set()
    second = await Lease.acquire(leases, unique, "b")
    assert second.term > first.term
    await second.release()


async def test_a_restarted_holder_takes_its_lease_over_and_the_older_one_loses_it(leases, unique):
    first = await Lease.acquire(leases, unique, "a")
    second = await Lease.acquire(leases, unique, "a")
    assert second.term > first.term
    await asyncio.wait_for(first.lost.wait(), 60)
    await first.release()
    assert await Lease.acquire(leases, unique, "b") is None
    await second.release()


HOLDER = """
import asyncio, sys, time
wall, wall_ns, off = time.time, time.time_ns, float(sys.argv[3])
time.time, time.time_ns = lambda: wall() + off, lambda: wall_ns() + int(off * 1e9)
from gradbus.bus import Buckets, Bus, BusSettings, Lease

async def hold():
    bus = await Bus.connect(BusSettings(sys.argv[1]), "holder")
    lease = await Lease.acquire(await bus.bucket(Buckets.LEASES), sys.argv[2], "holder")
    print("held", flush=True)
    await lease.lost.wait()

asyncio.run(hold())
"""


@pytest.mark.parametrize("off", [60.0, -60.0], ids=["ahead", "behind"])
async def test_a_holder_whose_clock_is_a_minute_off_keeps_its_lease_and_loses_it_when_it_dies(leases, nats_url, unique, eventually, off):
    """Only the server's clock counts how long a lease lives, and a holder counts by a clock that nobody sets."""
    command = [sys.executable, "-c", HOLDER, nats_url, unique, str(off)]
    holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert await holder.stdout.readline() == b"held\n"
    revisions = {(await leases.get(unique)).revision}

    async def renewed_often():
        assert await Lease.acquire(leases, unique, "other") is None
        revisions.add((await leases.get(unique)).revision)
        return len(revisions) > 6  # more than one of its times to live

    await eventually(renewed_often)
    holder.kill()
    await holder.wait()
    got = []

    async def taken_over():
        got.append(await Lease.acquire(leases, unique, "other"))
        return got[-1] is not None

    await eventually(taken_over)
    assert got[-1].term > max(revisions)
    await got[-1].release()


async def test_the_leases_of_a_process_are_renewed_at_one_time_by_few_writes(leases, unique, monkeypatch):
    sent, request = [], Client.request

    async def counted(client, subject, payload=b"", *given, **named):
        sent.append(subject)
        return await request(client, subject, payload, *given, **named)

    held = []
    for number in range(10):
        held.append(await Lease.acquire(leases, f"{unique}-{number}", "a"))
        await asyncio.sleep(0.01)
    monkeypatch.setattr(Client, "request", counted)
    async with asyncio.timeout(60):
        while any(lease._revision == lease.term for lease in held):  # noqa: ASYNC110 - another task changes it
            await asyncio.sleep(0.01)
    assert len(sent) < len(held)
    for lease in held:
        await lease.release()


async def test_a_renewed_lease_keeps_its_term_and_is_released_at_its_newest_revision(leases, unique, eventually):
    lease = await Lease.acquire(leases, unique, "a")
    await eventually(renewed(leases, lease))
    assert not lease.lost.is_set()
    await lease.release()
    assert await leases.get(unique) is None


async def test_a_renewal_whose_answer_was_lost_is_the_holders_own(leases, unique, eventually):
    lease = await Lease.acquire(leases, unique, "a")
    stored = await leases.get(unique)
    # As when the server took a renewal and was gone before it could say so.
    unheard = await leases.update(unique, stored.value, stored.revision)

    async def is_renewed():
        return lease.lost.is_set() or (await leases.get(unique)).revision > unheard

    await eventually(is_renewed)
    assert not lease.lost.is_set()
    await lease.release()
    assert await leases.get(unique) is None


async def test_a_lease_that_was_taken_away_is_lost(leases, unique):
    lease = await Lease.acquire(leases, unique, "a")
    await leases.delete(unique)
    await asyncio.wait_for(lease.lost.wait(), 60)
    await lease.release()


async def test_a_lease_outlives_a_restart_of_the_server(own_nats, own_bus, eventually):
    leases = await own_bus.bucket(Buckets.LEASES)
    lease = await Lease.acquire(leases, "conductor.run", "a")
    own_nats.kill()
    own_nats.start()
    await eventually(renewed(leases, lease))
    assert not lease.lost.is_set()
    await lease.release()


class Mute:
    """A bucket that takes the first renewal and never says so."""

    def __init__(self):
        self.entry, self.renewals, self.heard = None, 0, asyncio.Event()
        self.written = 0.0

    async def get(self, _):
        return self.entry

    async def create(self, _, value):
        self.entry = Entry(value, 1)
        return 1

    async def update(self, _, value, revision):
        self.renewals += 1
        if revision != self.entry.revision:
            raise Conflict("changed")
        self.entry, self.written = Entry(value, revision + 1), time.monotonic()
        if self.renewals == 1:
            await asyncio.Event().wait()
        self.heard.set()
        return self.entry.revision

    async def delete(self, *_):
        self.entry = None


async def test_a_lease_counts_as_renewed_from_its_newest_write_and_not_from_a_look_at_it():
    """Otherwise its holder would be killed only after the key has expired."""
    bucket = Mute()
    lease = await Lease.acquire(bucket, "device.gpu", "a", ttl=1.0)
    acquired = lease.renewed
    async with asyncio.timeout(60):
        while lease.renewed == acquired:  # noqa: ASYNC110 - another task changes it
            await asyncio.sleep(0.001)
    assert lease.renewed <= bucket.written
    await lease.release()


async def test_a_renewal_without_an_answer_is_repeated_long_before_the_lease_is_lost():
    bucket = Mute()
    lease = await Lease.acquire(bucket, "device.gpu", "a", ttl=1.0)
    await asyncio.wait_for(bucket.heard.wait(), 60)
    assert (bucket.renewals, lease.lost.is_set()) == (3, False), "the second one finds its own value"
    await lease.release()
    assert bucket.entry is None
