"""The workers that attested each version, as they are stored, on a real NATS."""

from types import SimpleNamespace

from nats.aio.client import Client

from gradbus.bus import Buckets
from gradbus.ids import digest_of
from gradbus.v1.weights_pb2 import Attestation
from gradbus_weight_store.holders import Holders
from gradbus_weight_store.service import WeightStoreService

RUNS = 12


async def test_of_many_runs_they_share_synced_writes_and_where_nothing_changed_there_is_none(bus, run_id, monkeypatch):
    heads = await bus.bucket(Buckets.HEADS)
    ledgers = {f"{run_id}-{n}": SimpleNamespace(holders=Holders(heads, f"{run_id}-{n}")) for n in range(RUNS)}
    store, sent, request = SimpleNamespace(_ledgers=ledgers), [], Client.request

    async def counted(client, subject, payload=b"", *given, **named):
        sent.append(subject)
        return await request(client, subject, payload, *given, **named)

    def attest(step, runs):
        for name in runs:
            ledgers[name].holders.add(Attestation(run_id=name, worker="w", step=step, digest=digest_of(b"%d" % step)))

    attest(0, ledgers)
    await WeightStoreService.store_holders(store)
    monkeypatch.setattr(Client, "request", counted)
    attest(1, ledgers)
    await WeightStoreService.store_holders(store)
    writes = [subject for subject in sent if subject.startswith("$KV.heads")]
    assert len(writes) < RUNS / 2, "they are read one by one, and written together"
    stored = [await heads.get(f"attested.{name}") for name in ledgers]
    assert all(digest_of(b"1").encode() in entry.value for entry in stored)
    sent.clear()
    await WeightStoreService.store_holders(store)
    assert sent == []
