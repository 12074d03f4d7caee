"""Writes of many tasks that share a synced write, on a real NATS."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.errors import MaxPayloadError

from gradbus.bus import Buckets, Conflict, group_commit
from gradbus.bus.batch import MOST_MESSAGES


@pytest.fixture
async def bucket(bus):
    return await bus.bucket(Buckets.RUNS)


@pytest.fixture
def requests(monkeypatch):
    """Messages that wait for the server's answer."""
    sent, request = [], Client.request

    async def counted(client, subject, payload=b"", *given, **named):
        sent.append(subject)
        return await request(client, subject, payload, *given, **named)

    monkeypatch.setattr(Client, "request", counted)
    return sent


async def created(bucket, unique, count):
    names = [f"{unique}-{number}.status" for number in range(count)]
    return {name: await bucket.create(name, b"1") for name in names}


async def test_writes_of_one_moment_wait_for_one_answer_and_each_gets_its_own_revision(bucket, unique, requests):
    before = await created(bucket, unique, 30)
    requests.clear()
    revisions = await asyncio.gather(*(bucket.update(name, name.encode(), revision) for name, revision in before.items()))
    assert len(requests) == 1
    stored = [await bucket.get(name) for name in before]
    assert [(entry.value, entry.revision) for entry in stored] == [(n.encode(), r) for n, r in zip(before, revisions, strict=True)]


async def test_what_comes_while_a_write_waits_shares_the_next(bucket, unique, monkeypatch):
    before = list((await created(bucket, unique, 11)).items())
    sent, answered, request = [], asyncio.Event(), Client.request

    async def slow(client, subject, payload=b"", *given, **named):
        sent.append(subject)
        await answered.wait()
        return await request(client, subject, payload, *given, **named)

    monkeypatch.setattr(Client, "request", slow)
    tasks = []
    for name, revision in before:
        tasks.append(asyncio.create_task(bucket.update(name, b"2", revision)))
        await asyncio.sleep(0.001)
    assert len(sent) == 1
    answered.set()
    await asyncio.gather(*tasks)
    assert len(sent) == 2


async def test_more_writes_than_a_batch_may_hold_take_several(bucket, unique, requests):
    before = await created(bucket, unique, MOST_MESSAGES + 2)
    requests.clear()
    await asyncio.gather(*(bucket.update(name, b"2", revision) for name, revision in before.items()))
    assert len(requests) == 2


async def test_one_that_is_refused_costs_the_others_nothing(bucket, unique):
    before = await created(bucket, unique, 3)
    names = list(before)
    await bucket.put(names[1], b"of another process")
    outcomes = await asyncio.gather(*(bucket.update(name, b"2", revision) for name, revision in before.items()), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [int, Conflict, int]
    assert [(await bucket.get(name)).value for name in names] == [b"2", b"of another process", b"2"]


async def test_one_that_is_too_large_costs_the_others_nothing(bucket, unique):
    before = await created(bucket, unique, 3)
    values = [b"2", bytes(2 << 20), b"2"]
    writes = [bucket.update(name, value, revision) for (name, revision), value in zip(before.items(), values, strict=True)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [int, MaxPayloadError, int]


async def test_two_writes_of_one_key_at_the_same_revision_are_one_and_a_conflict(bucket, unique):
    ((name, revision),) = (await created(bucket, unique, 1)).items()
    outcomes = await asyncio.gather(bucket.update(name, b"2", revision), bucket.update(name, b"3", revision), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {int, Conflict}


async def test_whoever_stops_waiting_stops_no_other(bucket, unique):
    before = await created(bucket, unique, 3)
    tasks = [asyncio.create_task(bucket.update(name, b"2", revision)) for name, revision in before.items()]
    await asyncio.sleep(0)
    tasks[0].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, int, int]


async def test_a_write_that_its_caller_gave_up_is_not_sent_so_that_another_attempt_succeeds(bucket, unique, monkeypatch):
    first, second = (await created(bucket, unique, 2)).items()
    began, goes_on, request = asyncio.Event(), asyncio.Event(), Client.request

    async def slow(client, subject, *given, **named):
        began.set()
        await goes_on.wait()
        return await request(client, subject, *given, **named)

    monkeypatch.setattr(Client, "request", slow)
    before = asyncio.create_task(bucket.update(first[0], b"2", first[1]))
    await began.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await bucket.update(second[0], b"given up", second[1])
    again = asyncio.create_task(bucket.update(second[0], b"again", second[1]))
    await asyncio.sleep(0)
    goes_on.set()
    await before
    revision = await again
    stored = await bucket.get(second[0])
    assert (stored.value, stored.revision) == (b"again", revision)


async def test_without_an_answer_all_of_them_hear_it(bucket, unique, monkeypatch):
    before = await created(bucket, unique, 3)

    async def silent(*_given, **_named):
        raise TimeoutError("no answer")

    monkeypatch.setattr(Client, "request", silent)
    outcomes = await asyncio.gather(*(bucket.update(name, b"2", revision) for name, revision in before.items()), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TimeoutError] * 3


async def test_an_answer_that_is_lost_holds_up_others_only_for_a_while(bucket, unique, monkeypatch):
    first, second = (await created(bucket, unique, 2)).items()
    began, gave_up, request = asyncio.Event(), asyncio.Event(), Client.request

    async def lost(client, subject, *given, **named):
        if not began.is_set():
            began.set()
            await gave_up.wait()
            raise TimeoutError("no answer")
        return await request(client, subject, *given, **named)

    monkeypatch.setattr(group_commit, "_MOST_SECONDS", 0.01)
    monkeypatch.setattr(Client, "request", lost)
    waiting = asyncio.create_task(bucket.update(first[0], b"2", first[1]))
    await began.wait()
    assert await bucket.update(second[0], b"2", second[1])
    gave_up.set()
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_bucket_of_an_older_release_takes_them_one_by_one(own_bus):
    await own_bus.jetstream.create_key_value(bucket=Buckets.RUNS)
    bucket = await own_bus.bucket(Buckets.RUNS)
    before = await created(bucket, "run", 3)
    await asyncio.gather(*(bucket.update(name, b"2", revision) for name, revision in before.items()))
    assert [(await bucket.get(name)).value for name in before] == [b"2"] * 3
