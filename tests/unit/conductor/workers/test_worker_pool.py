"""What the conductor does for one run does not grow with the workers and runs beside it: counted, not timed."""

import json

import pytest
from held_view import beat, change, empty_view
from work_counters import PythonCounter

from gradbus_conductor.run.deaths import PreparationWatch, StepWatch
from gradbus_conductor.workers import WorkerPool

OWN = 4
"""Rollouts of a run, in a small and in a large deployment."""


class Deployment:
    """Runs with a trainer and `OWN` rollouts each."""

    def __init__(self, runs):
        self.workers, self.assigned = empty_view(), empty_view()
        self.pool = WorkerPool(None, self.workers, self.assigned)
        self.run_id = "run-0001"
        for number in range(runs):
            for role, count in (("trainer", 1), ("rollout", OWN)):
                for worker in range(count):
                    self.join(f"{role}-{number:04}-{worker}", role, f"run-{number:04}")
        self.preparation = PreparationWatch(self.run_id, self.pool.live)
        self.step = StepWatch(self.run_id, self.pool.live)

    def join(self, name, role, run_id):
        change(self.assigned, name, json.dumps(run_id).encode())
        beat(self.workers, name, role, name, run_id=run_id, reached=1)


async def heartbeat(deployment):
    beat(deployment.workers, "rollout-0001-0", "rollout", "again", run_id=deployment.run_id, version=7)


async def assignment(deployment):
    change(deployment.assigned, "rollout-0001-0", None)
    change(deployment.assigned, "rollout-0001-0", json.dumps(deployment.run_id).encode())


async def wake_up(deployment):
    assert deployment.pool.count_serving(deployment.run_id, "rollout") == OWN


async def look(deployment):
    pool, run_id = deployment.pool, deployment.run_id
    assert len(pool.serving(run_id, "rollout")) == OWN
    assert len(pool.serving(run_id, "trainer")) == 1
    assert pool.run_fault(run_id) == ""
    assert deployment.preparation.fault() == ""
    assert deployment.step.fault(3, has_work=True) == ""


async def repair(deployment):
    await deployment.pool.share_rollouts(deployment.run_id)
    assert await deployment.pool.keep_trainer(deployment.run_id, "default")


async def waiting(deployment):
    assert not deployment.pool.has_free("trainer", "default")
    assert len(deployment.pool.assigned_trainers("default", 2)) == 2
    assert deployment.pool.count_assigned_trainers("default") > 2


@pytest.mark.parametrize("work", [heartbeat, assignment, wake_up, look, repair, waiting])
async def test_what_a_run_costs_does_not_grow_with_the_others(work):
    lines = []
    for runs in (3, 200):
        deployment, counter = Deployment(runs), PythonCounter()
        await work(deployment)  # what is done once is done
        with counter.tracing(), counter.counting() as counted:
            await work(deployment)
        lines.append(sum(counted.lines.values()))
    assert 0 < lines[1] <= lines[0], "for 1,000 workers as for 15"


async def test_runs_with_trainers_follow_their_trainers():
    deployment = Deployment(3)
    pool = deployment.pool
    assert list(pool.runs_with_trainers()) == ["run-0000", "run-0001", "run-0002"]
    deployment.join("trainer-extra", "trainer", "run-0001")
    change(deployment.workers, "trainer-0001-0", None)
    assert list(pool.runs_with_trainers()) == ["run-0000", "run-0001", "run-0002"], "it has another one"
    change(deployment.assigned, "trainer-extra", None)
    assert list(pool.runs_with_trainers()) == ["run-0000", "run-0002"]
    assert pool.has_free("trainer", "default")
    assert pool.assigned_runs() == {"run-0000", "run-0001", "run-0002"}
    assert pool.assigned_to("run-0001") == [f"rollout-0001-{number}" for number in range(OWN)] + ["trainer-0001-0"]
