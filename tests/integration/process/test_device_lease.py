"""Leases of a device on a real NATS: contenders come, leave, die and freeze in any order, and never do two hold the device."""

import asyncio
import itertools
import secrets

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import Bus, BusSettings, connection
from gradbus.process.device_lease import Contender, DeviceLease, device_name

TTL = 3.0
PATIENCE = 60.0
"""Seconds: a bound on waits of a busy machine, not a measurement."""


class Worker:
    """A process that takes turns; `dies` and `freezes` as processes do."""

    def __init__(self, table, number, goes_first):
        self.table = table
        self.name = f"{'trainer' if goes_first else 'rollout'}-{number}"
        self.alive = True
        self.lease = DeviceLease(table.leases, table.device, Contender(self.name, goes_first), TTL, self.killed)
        self.taking = None

    @property
    def holds(self):
        return self.alive and self.lease.is_held

    def killed(self):
        """In place of the end of the process."""
        self.alive = False

    def wants(self):
        if not self.lease.is_held and (self.taking is None or self.taking.done()):
            self.taking = asyncio.create_task(self._take())

    async def _take(self):
        await self.lease.take()
        self.table.taken(self)

    async def stop_renewing(self):
        """Its event loop stands still: nothing is renewed, and the process believes that it holds the device."""
        await cancel_and_wait(self.lease._lease._renewal)

    async def dies(self):
        if self.taking is not None:
            await cancel_and_wait(self.taking)
        if self.lease.is_held:
            await self.stop_renewing()
            self.lease._given_back.set()
        self.alive = False


class Table:
    """One device and its contenders."""

    def __init__(self, leases):
        self.leases = leases
        self.device = secrets.token_hex(4)
        self.workers = []
        self.terms = []

    def taken(self, worker):
        assert self.holders() == [worker], "two hold the device"
        assert all(term < worker.lease.term for term in self.terms), "a number was given twice"
        self.terms.append(worker.lease.term)

    def holders(self):
        return [worker for worker in self.workers if worker.holds]

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - several tasks and a thread change it
                await asyncio.sleep(0.02)

    async def close(self):
        for worker in self.workers:
            await worker.dies()


SEATS = {"trainer": True, "rollout": False, "other trainer": True}
seats = st.sampled_from(sorted(SEATS))


class Turns(RuleBasedStateMachine):
    """Any sequence of wishes, ends of turns, deaths and freezes. A process that is gone is started again under another name."""

    def __init__(self, loop, leases):
        super().__init__()
        self._loop = loop
        self._numbers = itertools.count()
        self.table = Table(leases)
        self.seated = {}

    def run(self, work):
        return self._loop.run_until_complete(work)

    def at(self, seat):
        if seat not in self.seated or not self.seated[seat].alive:
            self.seated[seat] = Worker(self.table, next(self._numbers), SEATS[seat])
            self.table.workers.append(self.seated[seat])
        return self.seated[seat]

    @rule(seat=seats)
    def wants(self, seat):
        async def wants():
            self.at(seat).wants()
            await asyncio.sleep(0.1)

        self.run(wants())

    @rule()
    def gives_back(self):
        for holder in self.table.holders():
            self.run(holder.lease.give_back())

    @rule(seat=seats)
    def dies(self, seat):
        self.run(self.at(seat).dies())

    @rule()
    def freezes(self):
        for holder in self.table.holders():
            self.run(holder.stop_renewing())

    @rule(seat=seats)
    def somebody_else_gets_it_once_nobody_has_it(self, seat):
        """After a death or a freeze this takes until the key has expired."""

        async def gets_it():
            self.at(seat).wants()
            before = len(self.table.terms)
            if self.table.holders() and not self.at(seat).holds and self.frozen():
                await self.table.until(lambda: len(self.table.terms) > before)

        self.run(gets_it())

    def frozen(self):
        return [holder for holder in self.table.holders() if holder.lease._lease._renewal.done()]

    @invariant()
    def at_most_one_holds_it(self):
        assert len(self.table.holders()) <= 1
        for worker in self.table.workers:
            if worker.taking is not None and worker.taking.done() and not worker.taking.cancelled():
                worker.taking.result()

    def teardown(self):
        async def last():
            self.at("trainer").wants()
            await self.table.until(self.table.holders)
            await self.table.close()

        self.run(last())


@pytest.fixture
def quick(monkeypatch):
    """A bucket whose keys expire soon."""
    monkeypatch.setitem(connection._TTL_SECONDS, "quick", TTL)


def test_no_order_of_wishes_turns_deaths_and_freezes_gives_the_device_to_two(nats_url, quick):
    loop = asyncio.new_event_loop()
    bus = loop.run_until_complete(Bus.connect(BusSettings(nats_url), "test"))
    leases = loop.run_until_complete(bus.bucket("quick"))
    some = settings(max_examples=6, stateful_step_count=16, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    try:
        run_state_machine_as_test(lambda: Turns(loop, leases), settings=some)
    finally:
        loop.run_until_complete(bus.close())
        loop.close()


@pytest.fixture
async def table(bus, quick):
    table = Table(await bus.bucket("quick"))
    yield table
    await table.close()


def worker(table, number, goes_first=False):
    table.workers.append(Worker(table, number, goes_first))
    return table.workers[-1]


async def test_a_trainer_that_waits_is_let_in_before_a_rollout(table):
    holder, rollout, trainer = worker(table, 0), worker(table, 1), worker(table, 2, goes_first=True)
    await holder.lease.take()
    rollout.wants()
    await asyncio.sleep(0.2)
    wanted = asyncio.create_task(holder.lease.wanted(lambda: False))
    await asyncio.sleep(0.2)
    assert not wanted.done(), "a rollout with work does not give way to another rollout"
    await asyncio.wait_for(holder.lease.wanted(lambda: True), PATIENCE)
    trainer.wants()
    await asyncio.wait_for(wanted, PATIENCE)
    await holder.lease.give_back()
    await table.until(lambda: trainer.holds)
    assert not rollout.holds
    await trainer.lease.give_back()
    await table.until(lambda: rollout.holds)


async def test_a_dead_holders_lease_goes_to_the_next_and_a_restarted_process_is_another_contender(table):
    dead, next_one = worker(table, 0, goes_first=True), worker(table, 1, goes_first=True)
    await dead.lease.take()
    await dead.dies()
    next_one.wants()
    await asyncio.sleep(TTL / 4)
    assert not next_one.holds, "the dead process may still have memory: its lease has not expired"
    await table.until(lambda: next_one.holds)


async def test_a_holder_that_froze_is_killed_before_the_next_one_gets_the_device(table):
    frozen, next_one = worker(table, 0), worker(table, 1)
    await frozen.lease.take()
    next_one.wants()
    await frozen.stop_renewing()
    await table.until(lambda: next_one.lease.is_held)
    assert not frozen.alive
    await next_one.taking


async def test_a_lease_that_another_process_took_away_kills_its_holder(table):
    robbed = worker(table, 0)
    await robbed.lease.take()
    await table.leases.delete(f"device.{table.device}")
    await table.until(lambda: not robbed.alive)


async def test_the_device_may_be_given_back_from_another_thread(table):
    one, other = worker(table, 0), worker(table, 1)
    await one.lease.take()
    await asyncio.to_thread(one.lease.give_back_from_thread)
    await asyncio.to_thread(one.lease.give_back_from_thread)
    other.wants()
    await table.until(lambda: other.holds)


async def test_a_turn_whose_end_is_cancelled_ends_all_the_same(table):
    holder = worker(table, 0)
    await holder.lease.take()
    ending = asyncio.create_task(holder.lease.give_back())
    await asyncio.sleep(0)
    await cancel_and_wait(ending)
    assert ending.cancelled()
    assert await table.leases.get(f"device.{table.device}") is None


async def test_the_wish_of_a_dead_process_holds_nobody_up_for_long(table):
    holder, dead, rollout = worker(table, 0), worker(table, 1, goes_first=True), worker(table, 2)
    await holder.lease.take()
    dead.wants()
    await asyncio.wait_for(holder.lease.wanted(lambda: False), PATIENCE)
    await dead.dies()
    await holder.lease.give_back()
    rollout.wants()
    await table.until(lambda: rollout.holds)


@pytest.mark.parametrize(
    ("device", "visible", "given", "name"),
    [
        ("cpu", "", "", "box-a-cpu-0"),
        ("cuda", "", "", "box-a-cuda-0"),
        ("cuda:0", "3,5", "", "box-a-cuda-3"),
        ("cuda:1", "3,5", "", "box-a-cuda-5"),
        ("cuda:1", "3, 5", "", "box-a-cuda-5"),
        ("cuda", "GPU-1f.2", "", "box-a-cuda-GPU-1f-2"),
        ("cuda", "", "the gpu", "the-gpu"),
    ],
)
def test_a_device_has_one_name_for_all_processes_of_a_machine(monkeypatch, device, visible, given, name):
    monkeypatch.setattr("socket.gethostname", lambda: "box.a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_name(device, given) == name
