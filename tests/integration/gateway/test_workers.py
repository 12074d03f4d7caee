"""Workers as they announce themselves."""

import asyncio
from types import SimpleNamespace

import pytest

from gradbus.bus import Buckets
from gradbus.control.runs import WorkerPresence
from gradbus_gateway.routes import workers


async def test_a_live_worker_is_listed_with_its_version(client, bus):
    bucket = await bus.bucket(Buckets.WORKERS)
    presence = WorkerPresence(worker="rollout-7", role="rollout", incarnation="a", version=3, claims=[1, 2])
    await bucket.put("rollout-7", presence.to_bytes())
    found = {worker["worker"]: worker for worker in client.workers()["data"]}["rollout-7"]
    assert (found["object"], found["version"], found["claims"]) == ("worker", 3, [1, 2])
    await bucket.put("rollout-8", b"no heartbeat")
    assert "rollout-8" not in {worker["worker"] for worker in client.workers()["data"]}
    await bucket.delete("rollout-7")
    assert "rollout-7" not in {worker["worker"] for worker in client.workers()["data"]}


async def test_of_many_workers_the_page_alone_is_parsed(client, bus, monkeypatch):
    bucket, parsed, parse = await bus.bucket(Buckets.WORKERS), [], workers.parse_presence
    names = [f"many-{number:02}" for number in range(30)]

    async def beat():
        for name in names:
            await bucket.put(name, WorkerPresence(worker=name, role="rollout", incarnation="a").to_bytes())

    monkeypatch.setattr(workers, "parse_presence", lambda name, value: parsed.append(name) or parse(name, value))
    async with asyncio.timeout(60):
        while True:
            await beat()
            parsed.clear()
            page = await workers.list_workers(SimpleNamespace(workers=bucket), "many-04", 3)
            if [worker.worker for worker in page.data] == names[5:8] and page.has_more:
                break
    assert parsed == names[5:9], "the page, and one to see that there are more"


async def test_a_list_does_not_wait_for_ever_for_the_bus(bus, monkeypatch):
    monkeypatch.setattr(workers, "_TIMEOUT_SECONDS", 0.5)
    bucket = await bus.bucket(Buckets.WORKERS)
    await bus.client.close()
    listing = asyncio.create_task(workers.list_workers(SimpleNamespace(workers=bucket), "", 10))
    await asyncio.wait({listing}, timeout=20)
    with pytest.raises(TimeoutError):
        listing.result()
