"""Workers that die before they are ready, and trainers that die at the same step."""

from held_view import beat, change, empty_view
from hypothesis import given
from hypothesis import strategies as st

from gradbus.control.live_workers import LiveWorkers
from gradbus_conductor.run.deaths import PreparationWatch, StepWatch


class Workers:
    """What the conductor sees of a trainer and a rollout."""

    def __init__(self):
        self.view = empty_view()
        self.watch = PreparationWatch("run", LiveWorkers(self.view))

    def show(self, role, incarnation, run_id="run", reached=-1, number=0):
        beat(self.view, f"{role}-{number}", role, str(incarnation), run_id=run_id, reached=reached)
        return self.watch.fault()

    def vanish(self):
        for name in list(self.view.entries):
            change(self.view, name, None)
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
    change(workers.view, "rollout-1", None)
    assert "rollout" in workers.watch.fault(), "the other one died too"


def test_a_worker_that_is_ready_clears_the_deaths_of_its_role_alone():
    workers = Workers()
    for number in range(5):
        workers.show("trainer", number)
        workers.show("rollout", f"r{number}")
    workers.show("rollout", "r4", reached=0)
    assert workers.show("rollout", "r5") == ""
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


class Trainers:
    """What the conductor sees of the run's trainers and of its newest version."""

    def __init__(self):
        self.view = empty_view()
        self.watch = StepWatch("run", LiveWorkers(self.view))

    def serve(self, incarnation, version, has_work=True, run_id="run"):
        beat(self.view, "trainer-0", "trainer", str(incarnation), run_id=run_id, reached=0)
        return self.watch.fault(version, has_work=has_work)

    def kill(self, version, has_work=True):
        change(self.view, "trainer-0", None)
        return self.watch.fault(version, has_work=has_work)


def test_trainers_that_die_at_one_step_again_and_again_end_the_run_and_the_worker_is_named():
    trainers = Trainers()
    for incarnation in range(8):
        assert trainers.serve(incarnation, version=3) == ""
        fault = trainers.kill(version=3)
        assert bool(fault) is (incarnation == 7)
    assert fault.startswith("8 trainer processes in a row ended after version 3 and made no other, the last was trainer-0")


def test_a_new_version_between_deaths_clears_them():
    trainers = Trainers()
    for incarnation in range(100):
        assert trainers.serve(incarnation, version=incarnation // 7) == ""
        assert trainers.kill(version=incarnation // 7) == ""


def test_trainers_that_die_while_they_wait_do_not_count():
    trainers = Trainers()
    for incarnation in range(100):
        assert trainers.serve(incarnation, version=3, has_work=False) == ""
        assert trainers.kill(version=3, has_work=False) == ""


def test_trainers_that_are_stopped_by_a_signal_do_not_count():
    trainers = Trainers()
    for incarnation in range(100):
        assert trainers.serve(incarnation, version=3) == ""
        assert trainers.serve(incarnation, version=3, run_id="") == "", "a worker that is stopped gives the run back first"
        assert trainers.kill(version=3) == ""
