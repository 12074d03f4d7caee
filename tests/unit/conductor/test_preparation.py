"""Workers that die before they are ready."""

from hypothesis import given
from hypothesis import strategies as st

from gradbus.control.runs import WorkerPresence
from gradbus_conductor.run.preparation import PreparationWatch


class Workers:
    """What the conductor sees of a trainer and a rollout."""

    def __init__(self):
        self.present = {}
        self.watch = PreparationWatch("run", lambda role: [worker for worker in self.present.values() if worker.role == role])

    def show(self, role, incarnation, run_id="run", reached=-1, number=0):
        name = f"{role}-{number}"
        self.present[name] = WorkerPresence(worker=name, role=role, incarnation=str(incarnation), run_id=run_id, reached=reached)
        return self.watch.fault()

    def vanish(self):
        self.present.clear()
        return self.watch.fault()


def test_five_deaths_in_a_row_end_the_run_and_name_the_worker():
    workers = Workers()
    assert [workers.show("trainer", number) for number in range(5)] == [""] * 5
    fault = workers.show("trainer", 5, run_id="")
    assert "5 trainer processes in a row ended while they prepared the run, the last was trainer-0" in fault


def test_a_worker_that_disappears_has_died():
    workers = Workers()
    for number in range(5):
        workers.show("rollout", number)
        fault = workers.vanish()
    assert "rollout" in fault


def test_workers_that_die_together_are_one_death():
    workers = Workers()
    for attempt in range(5):
        for number in range(8):
            assert workers.show("rollout", f"{attempt}.{number}", number=number) == ""
        fault = workers.vanish()
    assert fault.startswith("5 rollout processes")


def test_heartbeats_that_expire_while_nats_is_away_end_no_run():
    workers = Workers()
    for _ in range(20):
        for number in range(8):
            assert workers.show("rollout", number, number=number) == ""
        assert workers.vanish() == ""


def test_a_machine_that_kills_its_worker_ends_no_run_that_another_one_prepares():
    workers = Workers()
    workers.show("rollout", "patient", number=1)
    for attempt in range(20):
        assert workers.show("rollout", attempt) == ""
    del workers.present["rollout-1"]
    assert "rollout" in workers.watch.fault(), "the other one died too"


def test_a_worker_that_is_ready_clears_the_deaths_of_its_role_alone():
    workers = Workers()
    for number in range(5):
        workers.show("trainer", number)
        workers.show("rollout", number)
    workers.show("rollout", 4, reached=0)
    assert workers.show("rollout", 5) == ""
    assert "trainer" in workers.show("trainer", 5)


def test_an_attempt_that_only_failed_is_no_death():
    workers = Workers()
    for _ in range(20):
        assert workers.show("trainer", 1) == ""
        assert workers.show("trainer", 1, run_id="") == ""


@given(st.lists(st.integers(0, 3), max_size=60))
def test_kills_of_workers_that_serve_never_end_a_run(kinds):
    workers = Workers()
    for incarnation, deaths in enumerate(kinds):  # before each success at most three deaths
        for attempt in range(deaths):
            assert workers.show("rollout", f"{incarnation}.{attempt}") == ""
        assert workers.show("rollout", incarnation, reached=incarnation) == ""
