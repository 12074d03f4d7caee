"""Workers as they announce themselves."""

import asyncio
from types import SimpleNamespace

import pytest

from gradbus.bus import Buckets, View
from gradbus.client import document
from gradbus.control.runs import WorkerPresence
from gradbus_gateway import worker_roster
from gradbus_gateway.routes import workers
from gradbus_gateway.worker_roster import WorkerRoster


async def until(condition):
    """A list is half a second old at most."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the gateway reads when it is asked
            await asyncio.sleep(0.1)


async def test_a_live_worker_is_listed_with_its_version(client, bus):
    bucket = await bus.bucket(Buckets.WORKERS)
    presence = WorkerPresence(worker="rollout-7", role="rollout", incarnation="a", version=3, claims=[1, 2])
    listed = lambda: {worker["worker"]: worker for worker in map(document, client.workers())}  # noqa: E731

    async def is_listed():
        await bucket.put("rollout-7", presence.to_bytes())
        await bucket.put("rollout-8", b"no heartbeat")
        return "rollout-7" in listed()

    await until(is_listed)
    found = listed()["rollout-7"]
    assert (found["object"], found["version"], found["claims"]) == ("worker", 3, [1, 2])
    assert "rollout-8" not in listed()

    async def is_gone():
        await bucket.delete("rollout-7")
        return "rollout-7" not in listed()

    await until(is_gone)


async def test_pages_and_the_workers_of_a_run_come_in_order_of_name(http, bus):
    bucket = await bus.bucket(Buckets.WORKERS)

    def asked(query):
        page = http.get(f"/v1/workers?{query}").json()
        return [worker["worker"] for worker in page["data"]], page["next_after"]

    async def are_listed():
        for number in range(5):
            presence = WorkerPresence(worker=f"paged-{number}", role="rollout", incarnation="a", run_id="paged" if number % 2 else "")
            await bucket.put(presence.worker, presence.to_bytes())
        return asked("run=paged") == (["paged-1", "paged-3"], None) and asked("after=paged-0&limit=2") == (
            ["paged-1", "paged-2"],
            "paged-2",
        )

    await until(are_listed)
    assert asked("run=other") == ([], None)


async def test_however_many_ask_the_bucket_is_read_once_and_each_heartbeat_is_parsed_once(bus, monkeypatch):
    bucket, reads, parsed, read, parse = await bus.bucket(Buckets.WORKERS), [], [], View.read, WorkerPresence.model_validate_json
    roster = WorkerRoster(bucket)

    async def counted(view):
        reads.append(view)
        await read(view)

    for number in range(70):
        await bucket.put(f"many-{number:02}", WorkerPresence(worker=f"many-{number:02}", role="rollout", incarnation="a").to_bytes())
    monkeypatch.setattr(worker_roster, "_FRESH_SECONDS", 600.0)
    monkeypatch.setattr(View, "read", counted)
    monkeypatch.setattr(WorkerPresence, "model_validate_json", lambda value: parsed.append(value) or parse(value))
    gateway = SimpleNamespace(workers=roster)
    pages = await asyncio.gather(*(workers.list_workers(gateway, after=f"many-{number:02}", limit=3) for number in range(20)))
    assert all(page.data[0].worker > f"many-{number:02}" for number, page in enumerate(pages))
    assert len(reads) == 1
    assert len(parsed) == len(set(parsed)) >= 70


async def test_a_list_does_not_wait_for_ever_for_the_bus(bus, monkeypatch):
    monkeypatch.setattr(workers, "_TIMEOUT_SECONDS", 0.5)
    bucket = await bus.bucket(Buckets.WORKERS)
    await bus.client.close()
    listing = asyncio.create_task(workers.list_workers(SimpleNamespace(workers=WorkerRoster(bucket)), limit=10))
    await asyncio.wait({listing}, timeout=20)
    with pytest.raises(TimeoutError):
        listing.result()
