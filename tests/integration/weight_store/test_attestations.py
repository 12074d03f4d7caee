"""Attestations, and the alarms of R7."""

import asyncio

import pytest

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, EventLog
from gradbus.control.runs import WorkerPresence
from gradbus.ids import digest_of
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weights_pb2 import Attestation


@pytest.fixture(autouse=True)
def started(store_process):
    store_process.environment |= {"GRADBUS_LAGGING_VERSIONS": "3", "GRADBUS_LAGGING_SECONDS": "0.1"}
    store_process.start()


@pytest.fixture
def beat(bus, run_id):
    async def write(version, digest, worker="w", claims=()):
        name = f"{worker}-{run_id}"
        facts = {"run_id": run_id, "version": version, "digest": digest, "claims": list(claims)}
        presence = WorkerPresence(worker=name, role="rollout", incarnation="1", **facts)
        await (await bus.bucket(Buckets.WORKERS)).put(name, presence.to_bytes())

    return write


async def alarms(bus, run_id):
    """All alarms, once there is one."""
    async with asyncio.timeout(60):
        async for event in EventLog(bus, run_id).follow():
            if event.type == "alarm":
                break
    return [event for event in await EventLog(bus, run_id).read() if event.type == "alarm"]


async def attest(trainer, step, digest):
    claim = Attestation(run_id=trainer.run_id, worker=f"w-{trainer.run_id}", step=step, digest=digest)
    return (await trainer.stub.Attest(pb.AttestRequest(attestation=claim))).matches


async def listed(trainer):
    answer = await trainer.listed()
    return [(one.worker, one.step, one.digest) for one in answer.attestations]


async def test_the_right_weights_match_and_the_wrong_ones_raise_an_alarm(trainer, bus, run_id):
    await trainer.publish(0)
    assert await attest(trainer, 0, (await trainer.manifest(0)).digest)
    assert not await attest(trainer, 0, digest_of(b"wrong"))
    (alarm,) = await alarms(bus, run_id)
    assert alarm.data["worker"] == f"w-{run_id}"
    assert alarm.data["digest"] == digest_of(b"wrong")


async def test_attestations_of_live_workers_outlive_the_service(trainer, run_id, beat, store_process):
    await trainer.publish(0)
    digest = (await trainer.manifest(0)).digest
    expected = [(f"w-{run_id}", 0, digest)]

    async def seen():
        async with asyncio.timeout(60):
            while await listed(trainer) != expected:
                await beat(0, digest)

    await seen()
    store_process.kill()
    store_process.start()
    await seen()


async def attested_until(trainer, expected):
    async with asyncio.timeout(60):
        while [(step, digest) for _, step, digest in await listed(trainer)] != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_who_attested_a_version_is_told_after_a_newer_one_and_after_a_restart(trainer, bus, run_id, store_process):
    digests = []
    for step in range(2):
        await trainer.publish(step)
        digests.append((await trainer.manifest(step)).digest)
        assert await attest(trainer, step, digests[step])
    assert not await attest(trainer, 0, digest_of(b"wrong"))
    expected = [(0, digests[0]), (1, digests[1])]
    await attested_until(trainer, expected)
    heads = await bus.bucket(Buckets.HEADS)
    async with asyncio.timeout(60):
        while (stored := await heads.get(f"attested.{run_id}")) is None or digests[1].encode() not in stored.value:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    store_process.kill()
    store_process.start()
    await attested_until(trainer, expected)
    await trainer.delete_run()
    assert await heads.get(f"attested.{run_id}") is None


async def test_versions_that_retention_deletes_lose_their_holders(trainer, run_id, write_spec):
    await write_spec(run_id, keep=1, max_staleness=0)
    digests = [(await trainer.manifest(step)).digest for step in range(2)]
    for step, digest in enumerate(digests):
        await trainer.publish(step)
        assert await attest(trainer, step, digest)
    await trainer.commit(1)
    await attested_until(trainer, [(1, digests[1])])


async def test_a_worker_with_work_that_stays_behind_is_reported_once_and_an_idle_one_never(trainer, bus, run_id, beat):
    digest = (await trainer.manifest(0)).digest

    async def beat_on():
        while True:
            await beat(0, digest, "idle")
            await beat(0, digest, claims=[7])
            await asyncio.sleep(0.2)

    async with background(beat_on(), "presence"):
        for step in range(6):
            await trainer.publish(step)
        (alarm,) = await alarms(bus, run_id)
    assert alarm.data["worker"] == f"w-{run_id}"
    assert alarm.data["version"] == 0
    assert 3 <= alarm.data["behind"] <= 5, "as far as it had come when the store looked"
