"""What replicas remember of attestations is merged, bounded and not lost by a conflict."""

from gradbus.bus import Conflict
from gradbus.bus.kv import Entry
from gradbus.v1.weights_pb2 import Attestation
from gradbus_weight_store import holders
from gradbus_weight_store.holders import Holders


class Heads:
    """A bucket with one key."""

    def __init__(self):
        self.entry = None

    async def get(self, _):
        return self.entry

    async def create(self, _, value):
        return await self.update(_, value, None)

    async def update(self, _, value, revision):
        if revision != (self.entry.revision if self.entry else None):
            raise Conflict("changed")
        self.entry = Entry(value, (revision or 0) + 1)
        return self.entry.revision

    async def purge(self, _):
        self.entry = None


def attested(step, worker):
    return Attestation(run_id="run", worker=worker, step=step, digest=f"sha256:{step}")


async def found(one):
    return [(attestation.step, attestation.worker) for attestation in await one.attestations()]


async def test_replicas_see_and_keep_what_each_other_stored():
    heads = Heads()
    first, second = Holders(heads, "run"), Holders(heads, "run")
    first.add(attested(0, "a"))
    second.add(attested(0, "b"))
    await first.store()
    await second.store()
    assert await found(first) == await found(second) == await found(Holders(heads, "run")) == [(0, "a"), (0, "b")]


async def test_a_conflict_is_written_by_the_next_call(monkeypatch):
    heads = Heads()
    one = Holders(heads, "run")
    one.add(attested(0, "a"))

    async def conflicts(*_):
        raise Conflict("changed")

    with monkeypatch.context() as patch:
        patch.setattr(heads, "create", conflicts)
        await one.store()
    assert heads.entry is None
    await one.store()
    assert await found(Holders(heads, "run")) == [(0, "a")]


async def test_a_version_that_is_forgotten_does_not_come_back():
    heads = Heads()
    one = Holders(heads, "run")
    for step in range(2):
        one.add(attested(step, "a"))
    await one.store()
    other = Holders(heads, "run")
    other.forget({(0, "sha256:0")})
    await other.store()
    assert await found(other) == await found(Holders(heads, "run")) == [(1, "a")]


async def test_a_version_that_is_forgotten_during_a_write_does_not_come_back_by_another_replica(monkeypatch):
    heads = Heads()
    one, other = Holders(heads, "run"), Holders(heads, "run")
    one.add(attested(0, "a"))
    await one.store()
    update = heads.update

    async def forgets_meanwhile(*given):
        one.forget({(0, "sha256:0")})
        return await update(*given)

    one.add(attested(1, "a"))
    with monkeypatch.context() as patch:
        patch.setattr(heads, "update", forgets_meanwhile)
        await one.store()
    other.add(attested(2, "b"))
    await other.store()
    await one.store()
    assert await found(one) == await found(Holders(heads, "run")) == [(1, "a"), (2, "b")]


async def test_a_run_that_is_deleted_during_a_write_leaves_no_key(monkeypatch):
    heads = Heads()
    one = Holders(heads, "run")
    one.add(attested(0, "a"))
    await one.store()

    async def purged_meanwhile(_):
        await one.delete()

    one.add(attested(1, "a"))
    with monkeypatch.context() as patch:
        patch.setattr(heads, "get", purged_meanwhile)
        await one.store()
    assert heads.entry is None


async def test_the_oldest_go_where_the_value_would_be_too_long(monkeypatch):
    monkeypatch.setattr(holders, "_MOST_BYTES", 200)
    heads = Heads()
    one = Holders(heads, "run")
    for step in range(20):
        one.add(attested(step, "worker"))
    await one.store()
    kept = await found(Holders(heads, "run"))
    assert len(heads.entry.value) <= 200
    assert kept == [(step, "worker") for step in range(20 - len(kept), 20)]
    assert kept
