"""What the weight store does for one worker or one run does not grow with the workers beside it: counted, not timed."""

import asyncio

import pytest
from held_view import beat, empty_view
from work_counters import ROOT, PythonCounter

from gradbus.control.live_workers import LiveWorkers
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastConfig
from gradbus.v1.weights_pb2 import Attestation
from gradbus_weight_store.attestations import Attestations, LagLimit
from gradbus_weight_store.broadcasts import Broadcasts

SOURCES = (str(ROOT / "libs"), str(ROOT / "services/weight_store"))
OWN = 4
"""Rollouts of a run, in a small and in a large deployment."""


class Hints:
    """Takes the hint that a broadcast is open."""

    def __init__(self):
        self.sent = asyncio.Queue()

    async def publish(self, subject, payload):
        self.sent.put_nowait(Broadcast.FromString(payload))


def crowd(workers, runs):
    view = empty_view()
    for number in range(workers):
        beat(view, f"w-{number:04}", "rollout", str(number), run_id=f"run-{number % runs}", version=0, digest="d", receives=True)
    return LiveWorkers(view)


@pytest.mark.parametrize("ask", ["attest", "list"])
def test_an_attestation_and_the_holders_of_a_run_cost_the_same_beside_a_thousand_workers(ask):
    lines = []
    for workers in (2 * OWN, 250 * OWN):
        attestations, counter = Attestations(None, crowd(workers, workers // OWN), LagLimit(3, 1.0)), PythonCounter(SOURCES)
        for number in range(workers):
            claim = Attestation(run_id=f"run-{number % (workers // OWN)}", worker=f"w-{number:04}", step=1, digest="d")
            attestations.record(claim, "d")
        with counter.tracing(), counter.counting() as work:
            if ask == "attest":
                assert attestations.record(Attestation(run_id="run-1", worker="w-0001", step=2, digest="d"), "d")
            else:
                assert len(attestations.of("run-1")) == OWN
        lines.append(sum(work.lines.values()))
    assert 0 < lines[1] <= lines[0]


async def lines_of_joins(workers):
    hints = Hints()
    broadcasts, counter = Broadcasts(hints, crowd(workers, 1)), PythonCounter(SOURCES)
    request = pb.OpenBroadcastRequest(broadcast=Broadcast(run_id="run-0", term=1, config=BroadcastConfig(join_seconds=60.0)))
    opening = asyncio.create_task(broadcasts.open(request))
    announced = await hints.sent.get()
    await asyncio.sleep(0)
    with counter.tracing(), counter.counting() as work:
        joins = []
        for number in range(workers):
            join = pb.JoinBroadcastRequest(run_id="run-0", broadcast_id=announced.broadcast_id, worker=f"w-{number:04}")
            joins.append(asyncio.create_task(broadcasts.join(join)))
            await asyncio.sleep(0)  # it is heard before the next one
        memberships = await asyncio.gather(opening, *joins)
    assert {len(membership.workers) for membership in memberships} == {workers}
    return sum(work.lines.values())


async def test_the_joins_of_a_broadcast_cost_as_much_each_however_many_there_are(monkeypatch):
    monkeypatch.setattr("gradbus_weight_store.broadcasts._POLL_SECONDS", 60.0)  # looks by the clock add a look at all workers each
    few, many = await lines_of_joins(20), await lines_of_joins(200)
    assert many <= 10 * few
