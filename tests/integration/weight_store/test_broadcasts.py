"""The rendezvous of a broadcast: the weight store's answer to trainer and workers. No weights are sent here."""

import asyncio

import grpc
import pytest

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, subjects
from gradbus.control.live_workers import LiveWorkers
from gradbus.control.runs import WorkerPresence
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastConfig
from gradbus.v1.weights_pb2 import Shard
from gradbus_weight_store.broadcasts import Broadcasts

LATE_SECONDS = 3.0  # who comes at once is in time also on a machine that is busy with other things
SHARD = Shard(digest="sha256:" + 64 * "0", size_bytes=1)


class Rendezvous:
    """A trainer and workers that only ask."""

    def __init__(self, stub, bus, run_id):
        self.stub, self.bus, self.run_id = stub, bus, run_id
        self.announced = asyncio.Queue()
        self.live = []

    async def note(self, payload):
        await self.announced.put(Broadcast.FromString(payload))

    async def present(self, *names, receives=True):
        """From now on these live."""
        for name in names:
            self.live.append(WorkerPresence(worker=self.name(name), role="rollout", incarnation="1", run_id=self.run_id, receives=receives))
        await self.beat()

    async def beat(self):
        workers = await self.bus.bucket(Buckets.WORKERS)
        for presence in self.live:
            await workers.put(presence.worker, presence.to_bytes())

    async def beat_on(self):
        while True:
            await asyncio.sleep(1)
            await self.beat()

    async def seen(self):
        """Returns when the store has had every call made before."""
        await self.join("nobody", Broadcast())

    def name(self, name):
        return f"{name}-{self.run_id}"

    def open(self, term=1, previous="", join_seconds=20.0, shards=(SHARD,)):
        broadcast = Broadcast(run_id=self.run_id, term=term, step=5, shards=shards, config=BroadcastConfig(join_seconds=join_seconds))
        request = pb.OpenBroadcastRequest(broadcast=broadcast, address="here:1", previous_group=previous)
        return asyncio.ensure_future(self.stub.OpenBroadcast(request, wait_for_ready=True, timeout=60))

    def join(self, name, broadcast, previous=""):
        request = pb.JoinBroadcastRequest(
            run_id=self.run_id, broadcast_id=broadcast.broadcast_id, worker=self.name(name), previous_group=previous
        )
        return asyncio.ensure_future(self.stub.JoinBroadcast(request, timeout=60))

    async def opened(self, **options):
        """An open broadcast as announced; asked again until the store has seen the workers."""
        async with asyncio.timeout(60):
            while True:
                opening = self.open(**options)
                announced = asyncio.ensure_future(self.announced.get())
                await asyncio.wait({opening, announced}, return_when=asyncio.FIRST_COMPLETED)
                if announced.done():
                    return opening, announced.result()
                announced.cancel()

    async def all_join(self, names, previous=""):
        """Those who took part; asked again until the store has seen all of them live."""
        async with asyncio.timeout(60):
            while True:
                opening, broadcast = await self.opened(previous=previous)
                joining = [self.join(name, broadcast, previous) for name in names]
                members = (await opening).membership
                told = [(await one).membership for one in joining]
                if list(members.workers) == sorted(map(self.name, names)):
                    assert told == [members] * len(names)
                    return members


@pytest.fixture
def store_process(shared_store):
    return shared_store


@pytest.fixture
async def rendezvous(stub, bus, run_id):
    made = Rendezvous(stub, bus, run_id)
    async with bus.subscribed(subjects.broadcasts(run_id), made.note), background(made.beat_on(), "presence"):
        yield made


async def test_all_live_workers_join_and_get_the_same_members_and_keep_their_group(rendezvous):
    await rendezvous.present("b", "a")
    await rendezvous.present("sglang", receives=False)
    first = await rendezvous.all_join(["b", "a"])
    assert list(first.workers) == [rendezvous.name("a"), rendezvous.name("b")]
    assert (list(first.absent), first.address) == ([], "here:1")
    again = await rendezvous.all_join(["a", "b"], previous=first.group)
    assert again.group == first.group
    assert (await rendezvous.all_join(["a", "b"], previous="")).group != first.group, "the members have no group any more"


async def test_without_a_worker_that_receives_broadcasts_there_is_no_wait(rendezvous):
    await rendezvous.present("sglang", receives=False)
    assert not (await rendezvous.open()).membership.workers
    assert rendezvous.announced.empty()


async def test_an_absent_worker_is_named_and_a_late_one_is_no_member(rendezvous):
    await rendezvous.present("a", "b")
    await rendezvous.all_join(["a", "b"])
    opening, broadcast = await rendezvous.opened(join_seconds=LATE_SECONDS)
    joining = rendezvous.join("a", broadcast)
    members = (await opening).membership
    assert (list(members.workers), list(members.absent)) == ([rendezvous.name("a")], [rendezvous.name("b")])
    assert (await joining).membership == members
    assert not (await rendezvous.join("b", broadcast)).membership.workers
    opening, broadcast = await rendezvous.opened()
    await rendezvous.join("a", broadcast)
    assert list((await opening).membership.absent) == [], "it is not waited for again at once"


async def test_a_newer_broadcast_ends_the_older_without_members(rendezvous):
    await rendezvous.present("a", "b")
    await rendezvous.all_join(["a", "b"])
    older, broadcast = await rendezvous.opened()
    joining = rendezvous.join("a", broadcast)
    newer, broadcast = await rendezvous.opened()
    assert not (await older).membership.workers
    assert not (await joining).membership.workers
    for name in ("a", "b"):
        rendezvous.join(name, broadcast)
    assert len((await newer).membership.workers) == 2


async def test_a_worker_that_ends_its_call_is_no_member_and_a_trainer_that_does_frees_the_workers(rendezvous):
    await rendezvous.present("a", "b")
    await rendezvous.all_join(["a", "b"])
    opening, broadcast = await rendezvous.opened()
    gone = rendezvous.join("a", broadcast)
    await rendezvous.seen()
    gone.cancel()
    joining = rendezvous.join("b", broadcast)
    await rendezvous.seen()
    opening.cancel()
    assert not (await joining).membership.workers
    opening, broadcast = await rendezvous.opened(join_seconds=LATE_SECONDS)
    await rendezvous.join("b", broadcast)
    assert list((await opening).membership.workers) == [rendezvous.name("b")]


async def test_an_older_term_and_what_is_no_digest_are_refused(rendezvous):
    await rendezvous.stub.OpenTerm(pb.OpenTermRequest(run_id=rendezvous.run_id, term=2), wait_for_ready=True, timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rendezvous.open(term=1)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    for shards in ([], [Shard(digest="../up")]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rendezvous.open(term=2, shards=shards)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("turns", range(6))
async def test_a_trainer_that_leaves_while_a_worker_joins_ends_the_broadcast(rendezvous, bus, turns):
    """Whatever turn of the event loop the two meet in: `asyncio.wait_for` lost the cancellation in one of them."""
    await rendezvous.present("a", "b")
    workers = await bus.bucket(Buckets.WORKERS)
    async with workers.view() as presence:
        broadcasts = Broadcasts(bus, LiveWorkers(presence))
        await presence.catch_up()
        config = BroadcastConfig(join_seconds=20.0)
        request = pb.OpenBroadcastRequest(broadcast=Broadcast(run_id=rendezvous.run_id, term=1, shards=[SHARD], config=config))
        opening = asyncio.create_task(broadcasts.open(request))
        broadcast = await rendezvous.announced.get()
        joining = asyncio.create_task(
            broadcasts.join(
                pb.JoinBroadcastRequest(run_id=rendezvous.run_id, broadcast_id=broadcast.broadcast_id, worker=rendezvous.name("b"))
            )
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
        assert not (await joining).workers
