"""Views of buckets on a real NATS: filled before they are used, and up to date again after any fault."""

import asyncio
import contextlib
import signal
from collections import Counter

import pytest
from nats.aio.client import Client

from gradbus.bus import Buckets, Bus, BusSettings, connection
from gradbus.bus import view as view_module


@pytest.fixture
async def bucket(bus):
    return await bus.bucket(Buckets.RUNS)


async def until(view, condition):
    async with asyncio.timeout(60):
        while not condition():
            view.changed.clear()
            if not condition():
                await view.changed.wait()


async def test_a_view_is_filled_though_its_keys_come_after_the_answer_that_counts_them(own_bus, monkeypatch):
    """The server sends keys and answers by two ways: a view that took "nothing is waiting" for "there is nothing" began empty."""
    bucket = await own_bus.bucket(Buckets.RUNS)
    for number in range(5):
        await bucket.put(f"run-{number}.spec", b"1")
    process = Client._process_msg
    late = set()

    async def processed(client, sid, subject, *rest):
        async def later():
            await asyncio.sleep(0.1)
            await process(client, sid, subject, *rest)

        if subject.startswith(b"$KV."):
            late.add(asyncio.create_task(later()))
        else:
            await process(client, sid, subject, *rest)

    monkeypatch.setattr(Client, "_process_msg", processed)
    async with bucket.view() as view:
        assert len(view.entries) == 5
    assert len(late) >= 5


async def test_a_view_of_nothing_is_filled(own_bus):
    async with asyncio.timeout(60), (await own_bus.bucket(Buckets.RUNS)).view() as view:
        assert dict(view.entries) == {}


async def test_a_view_that_misses_a_change_reads_all_again(own_bus, monkeypatch):
    bucket = await own_bus.bucket(Buckets.RUNS)
    process = Client._process_msg
    lost = []

    async def processed(client, sid, subject, *rest):
        if subject.endswith(b".lost") and not lost:
            lost.append(subject)
        else:
            await process(client, sid, subject, *rest)

    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 600.0)
    async with bucket.view() as view:
        monkeypatch.setattr(Client, "_process_msg", processed)
        await bucket.put("run.lost", b"1")
        await bucket.put("run.seen", b"1")
        await until(view, lambda: dict(view.entries) == {"run.lost": b"1", "run.seen": b"1"})
    assert lost


async def test_a_bucket_that_takes_longer_to_read_than_a_view_lasts_is_read_all_the_same(own_bus, monkeypatch):
    bucket = await own_bus.bucket(Buckets.RUNS)
    await asyncio.gather(*(bucket.put(f"run-{n}.spec", b"1") for n in range(200)))
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 1e-6)
    async with asyncio.timeout(60), bucket.view() as view:
        assert len(view.entries) == 200


@pytest.fixture
def delivered(monkeypatch):
    """Subjects of the keys that the server sent."""
    process, found = Client._process_msg, []

    async def processed(client, sid, subject, *rest):
        if subject.startswith(b"$KV."):
            found.append(subject)
        await process(client, sid, subject, *rest)

    monkeypatch.setattr(Client, "_process_msg", processed)
    return found


async def test_of_a_large_bucket_what_has_changed_is_read_again_and_no_more(own_bus, delivered):
    bucket = await own_bus.bucket(Buckets.RUNS)
    await asyncio.gather(*(bucket.put(f"run-{n}.spec", b"1") for n in range(100)))
    view = bucket.snapshot()
    await view.read()
    await view.read()  # from here on it is known to be the same bucket
    delivered.clear()
    await view.read()
    assert delivered == []
    await bucket.delete("run-7.spec")
    await bucket.put("run-8.spec", b"2")
    await bucket.put("run-100.spec", b"1")
    await view.read()
    assert sorted(delivered) == [b"$KV.runs.run-100.spec", b"$KV.runs.run-7.spec", b"$KV.runs.run-8.spec"]
    assert dict(view.entries) == {f"run-{n}.spec": b"2" if n == 8 else b"1" for n in range(101) if n != 7}


async def test_a_large_bucket_that_was_made_again_is_read_as_a_whole(own_bus, own_nats, monkeypatch):
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 0.05)
    monkeypatch.setattr(view_module, "CHECK_SECONDS", 0.5)
    bucket = await own_bus.bucket(Buckets.RUNS)
    await asyncio.gather(*(bucket.put(f"run-{n}.spec", b"1") for n in range(100)))
    async with bucket.view() as view:
        await own_bus.jetstream.delete_key_value(Buckets.RUNS)
        other = await Bus.connect(BusSettings(own_nats.url), "writer")
        again = await other.bucket(Buckets.RUNS)
        for _ in range(150):  # so that its sequences are beyond those that are known
            await again.put("run-new.spec", b"2")
        await until(view, lambda: dict(view.entries) == {"run-new.spec": b"2"})
        await other.close()


@pytest.mark.parametrize("name", [Buckets.WORKERS, Buckets.LEASES])
async def test_expired_keys_leave_a_large_view_too(own_bus, monkeypatch, name):
    monkeypatch.setitem(connection._TTL_SECONDS, name, 1.0)
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 0.05)
    bucket = await own_bus.bucket(name)
    await asyncio.gather(*(bucket.put(f"worker-{n}", b"1") for n in range(100)))
    async with bucket.view() as view:
        await until(view, lambda: not view.entries)


@pytest.fixture
def asked(monkeypatch):
    """Subjects of what the client publishes."""
    publish, found = Client.publish, []

    async def published(client, subject, *rest, **named):
        found.append(subject)
        await publish(client, subject, *rest, **named)

    monkeypatch.setattr(Client, "publish", published)
    return found


async def test_a_heartbeat_that_stops_is_told_by_its_marker_and_the_others_are_not_read_again(own_bus, monkeypatch, delivered, asked):
    monkeypatch.setitem(connection._TTL_SECONDS, Buckets.WORKERS, 2.0)
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 0.05)
    bucket = await own_bus.bucket(Buckets.WORKERS)
    names = [f"worker-{n:02}" for n in range(20)]
    for name in names:
        await bucket.put(name, b"0")
    async with bucket.view() as view:
        delivered.clear()
        asked.clear()
        beats = 0
        async with asyncio.timeout(60):
            while names[0] in view.entries:
                beats += 1
                await asyncio.gather(*(bucket.put(name, str(beats).encode()) for name in names[1:]))
                await asyncio.sleep(0.2)
        assert sorted(view.entries) == names[1:]
    told = Counter(delivered)
    assert told[f"$KV.workers.{names[0]}".encode()] == 1
    assert all(told[f"$KV.workers.{name}".encode()] <= beats for name in names[1:]), "each heartbeat once"
    assert [subject for subject in asked if "CONSUMER.CREATE" in subject] == []


async def test_more_than_a_thousand_workers_follow_a_key_each(own_bus):
    """NATS gives a stream 1,000 consumers if it is not told: the workers beyond never heard of their run."""
    bucket = await own_bus.bucket(Buckets.ASSIGNMENTS)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(120):
        views = [await stack.enter_async_context(bucket.view(f"worker-{number}")) for number in range(1010)]
        await bucket.put("worker-1009", b'"run"')
        await until(views[-1], lambda: views[-1].get("worker-1009") == b'"run"')
    for stream in ("PROMPTS", "EVENTS", "KV_assignments"):
        assert (await own_bus.jetstream.stream_info(stream)).config.max_consumers > 100_000


async def test_a_view_makes_one_consumer_however_long_it_lives(own_bus, monkeypatch, asked):
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 0.02)
    monkeypatch.setattr(view_module, "CHECK_SECONDS", 0.1)
    bucket = await own_bus.bucket(Buckets.RUNS)
    async with bucket.view("run.*") as view:
        async with asyncio.timeout(60):
            while sum("CONSUMER.INFO" in subject for subject in asked) < 5:  # noqa: ASYNC110 - one at the start, then the checks
                await asyncio.sleep(0.05)
        await bucket.put("run.spec", b"1")
        await until(view, lambda: view.get("run.spec") == b"1")
    assert sum("CONSUMER.CREATE" in subject for subject in asked) == 1
    assert sum("STREAM.INFO" in subject for subject in asked) <= 2, "the bucket's own"


async def test_a_last_change_that_never_arrives_is_missed_at_a_check(own_bus, monkeypatch):
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 0.02)
    monkeypatch.setattr(view_module, "CHECK_SECONDS", 0.1)
    bucket = await own_bus.bucket(Buckets.RUNS)
    process, lost = Client._process_msg, []

    async def processed(client, sid, subject, *rest):
        if subject.endswith(b".lost") and not lost:
            lost.append(subject)
        else:
            await process(client, sid, subject, *rest)

    async with bucket.view() as view:
        monkeypatch.setattr(Client, "_process_msg", processed)
        await bucket.put("run.lost", b"1")
        await until(view, lambda: view.get("run.lost") == b"1")
    assert lost


async def test_a_view_outlives_whatever_breaks_its_watch(bucket, unique, monkeypatch):
    async with bucket.view(f"{unique}.*") as view:
        failed = asyncio.Event()

        def fail(_changes):
            failed.set()
            raise ZeroDivisionError("a fault that nobody thought of")

        with monkeypatch.context() as patch:
            patch.setattr(view, "_apply", fail)
            await bucket.put(f"{unique}.spec", b"1")
            await asyncio.wait_for(failed.wait(), 60)
        await until(view, lambda: view.get(f"{unique}.spec") == b"1")


async def test_a_view_is_filled_before_its_block_and_follows(bucket, unique):
    await bucket.put(f"{unique}.spec", b"1")
    await bucket.put(f"{unique}.gone", b"1")
    await bucket.delete(f"{unique}.gone")
    async with bucket.view(f"{unique}.*") as view:
        assert dict(view.entries) == {f"{unique}.spec": b"1"}
        await bucket.put(f"{unique}.status", b"2")
        await until(view, lambda: view.get(f"{unique}.status") == b"2")
        await bucket.delete(f"{unique}.spec")
        await until(view, lambda: view.get(f"{unique}.spec") is None)


async def test_a_view_recovers_after_its_server_was_killed(own_nats, own_bus):
    bucket = await own_bus.bucket(Buckets.RUNS)
    await bucket.put("run.spec", b"1")
    async with bucket.view() as view:
        own_nats.kill()
        own_nats.start()
        other = await Bus.connect(BusSettings(own_nats.url), "writer")
        await (await other.bucket(Buckets.RUNS)).put("run.desired", b"2")
        await other.close()
        await until(view, lambda: dict(view.entries) == {"run.spec": b"1", "run.desired": b"2"})


async def test_a_view_asks_a_server_that_does_not_answer_ever_more_rarely(own_nats, own_bus, monkeypatch, eventually):
    """Otherwise the views of a thousand workers keep a busy server busy. The first answer makes it patient again."""
    bucket = await own_bus.bucket(Buckets.RUNS)
    asked, pause_of = [], view_module._pause_of

    async def asked_often():
        return len(asked) >= 5

    monkeypatch.setattr(view_module, "_pause_of", lambda unanswered: asked.append(unanswered) or 0.0)
    monkeypatch.setattr(view_module, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 0.1)
    monkeypatch.setattr(own_bus.jetstream, "_timeout", 0.2)
    async with asyncio.timeout(60), bucket.view() as view:
        own_nats.process.send_signal(signal.SIGSTOP)
        await eventually(asked_often)
        own_nats.process.send_signal(signal.SIGCONT)
        await bucket.put("run-1.status", b"1")
        await until(view, lambda: view.get("run-1.status") == b"1")
        assert asked[:5] == [1, 2, 3, 4, 5]
        assert view._unanswered == 0
    pauses = [pause_of(unanswered) for unanswered in range(40)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.2, 10.0)


async def test_a_view_recovers_when_its_consumer_is_removed(own_bus, monkeypatch):
    monkeypatch.setattr(view_module, "CHECK_SECONDS", 0.5)
    bucket = await own_bus.bucket(Buckets.RUNS)
    async with bucket.view() as view:
        for consumer in await own_bus.jetstream.consumers_info("KV_runs"):
            await own_bus.jetstream.delete_consumer("KV_runs", consumer.name)
        await bucket.put("run.spec", b"1")
        await until(view, lambda: view.get("run.spec") == b"1")


async def test_a_view_ends_at_one_cancellation_though_its_connection_is_lost(own_nats):
    bus = await Bus.connect(BusSettings(own_nats.url), "test")
    bucket = await bus.bucket(Buckets.RUNS)
    async with bucket.view("a.*") as view:
        await bucket.put("a.b", b"1")
        await until(view, lambda: view.get("a.b"))
        (follower,) = (task for task in asyncio.all_tasks() if task.get_name() == "view a.*")
        await bus.close()
        follower.cancel()
        await asyncio.wait({follower}, timeout=10)
        assert follower.cancelled()


async def test_the_consumers_of_views_end_with_them(own_bus, eventually):
    bucket = await own_bus.bucket(Buckets.RUNS)
    for _ in range(5):
        async with bucket.view():
            pass

    async def are_gone():
        return await own_bus.jetstream.consumers_info("KV_runs") == []

    await eventually(are_gone)


async def test_a_listener_hears_every_key_and_then_what_changes(bucket, unique):
    await bucket.put(f"{unique}.spec", b"1")
    heard = []
    async with bucket.view(f"{unique}.*") as view:
        view.listen(lambda key: heard.append((key.rpartition(".")[2], view.get(key))))
        await bucket.put(f"{unique}.status", b"2")
        await until(view, lambda: len(heard) == 2)
        await bucket.delete(f"{unique}.spec")
        await until(view, lambda: len(heard) == 3)
    assert heard == [("spec", b"1"), ("status", b"2"), ("spec", None)]


async def test_a_listener_hears_what_changed_while_the_view_was_away(own_bus, monkeypatch):
    monkeypatch.setattr(view_module, "RESYNC_SECONDS", 0.05)
    monkeypatch.setattr(view_module, "CHECK_SECONDS", 0.5)
    bucket = await own_bus.bucket(Buckets.RUNS)
    await asyncio.gather(*(bucket.put(f"run-{n}.spec", b"1") for n in range(100)))
    heard = []
    async with bucket.view() as view:
        view.listen(heard.append)
        heard.clear()
        await own_bus.jetstream.delete_key_value(Buckets.RUNS)
        other = await Bus.connect(BusSettings(own_bus.client.connected_url.geturl()), "writer")
        await (await other.bucket(Buckets.RUNS)).put("run-7.spec", b"2")
        await until(view, lambda: dict(view.entries) == {"run-7.spec": b"2"})
        await other.close()
    counts = Counter(heard)
    assert counts.pop("run-7.spec") in {1, 2}, "twice, if the view came between the new bucket and its key"
    assert counts == {f"run-{n}.spec": 1 for n in range(100) if n != 7}, "reading again repeats nothing"


async def test_a_view_that_caught_up_shows_what_was_written_before(bucket, unique):
    other = f"{unique}-other"
    async with bucket.view(f"{unique}.*") as view:
        await asyncio.wait_for(view.catch_up(), 60)
        for number in range(50):
            await bucket.put(f"{unique}.spec", str(number).encode())
            await bucket.put(f"{other}.spec", b"of no interest")
            await asyncio.wait_for(view.catch_up(), 60)
            assert view.get(f"{unique}.spec") == str(number).encode()
