"""Which of the stored runs need a conductor, and which only wait."""

from typing import get_args

import pytest
from held_view import change, empty_view
from hypothesis import given
from hypothesis import strategies as st

from gradbus.control.runs import RunProgress, RunRecord, RunState, RunStatus, read_run
from gradbus.spec import RunSpec
from gradbus_conductor.runs import index as index_module
from gradbus_conductor.runs.index import RunIndex

SPEC = RunSpec.model_validate(
    {"name": "one", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}, "schedule": {"steps": 1}}
)
STATES = list(get_args(RunState))


class Runs:
    """The bucket and its index; keys change as NATS would change them."""

    def __init__(self, states=None, desired=None):
        self.view = empty_view()
        self.index = RunIndex(self.view)
        for run_id, state in (states or {}).items():
            self.submit(run_id)
            if state:
                self.show(run_id, state)
        for run_id, state in (desired or {}).items():
            self.request(run_id, state)

    def put(self, key, value):
        change(self.view, key, value)

    def submit(self, run_id, key_id="k", queue="default"):
        spec = SPEC.model_copy(update={"queue": queue})
        self.put(f"{run_id}.spec", RunRecord(run_id=run_id, spec=spec, created_unix_ns=1, key_id=key_id).to_bytes())

    def serve(self, key_id, unix_ns):
        self.put(f"{key_id}.served", str(unix_ns).encode())

    def upcoming(self, with_trainers=(), queue="default"):
        return list(self.index.upcoming(with_trainers, queue))

    def show(self, run_id, state, **fields):
        self.put(f"{run_id}.status", RunStatus(state=state, **fields).to_bytes())

    def request(self, run_id, state):
        self.put(f"{run_id}.desired", f'"{state}"'.encode())

    def to_drive(self, most, with_workers=()):
        return self.index.to_drive(most, set(with_workers))


def test_of_runs_that_only_wait_the_oldest_are_driven():
    states = {"run-4": None, "run-2": "queued", "run-1": "queued", "run-3": None}
    assert Runs(states, dict.fromkeys(states, "running")).to_drive(2) == ["run-1", "run-2"]
    assert Runs(states).to_drive(3) == ["run-1", "run-2", "run-3"]


def test_runs_under_way_are_driven_wherever_they_stand_and_those_that_are_over_are_not():
    states = {
        "run-1": "succeeded",
        "run-2": "queued",
        "run-3": None,
        "run-4": "running",
        "run-5": "waiting_for_reward",
        "run-6": "cancelled",
    }
    assert Runs(states).to_drive(1) == ["run-4", "run-5", "run-2"]


def test_a_run_whose_end_is_decided_is_driven_whatever_its_state():
    runs = Runs({"run-1": None, "run-2": None})
    runs.show("run-2", "queued", ending="failed")
    assert runs.to_drive(1) == ["run-2", "run-1"]


def test_thousands_that_were_paused_or_cancelled_before_they_began_need_no_driver():
    states = {f"run-{n:04}": None for n in range(3000)}
    desired = {run_id: "cancelled" if n % 2 else "paused" for n, run_id in enumerate(states)}
    runs = Runs(states | {"run-9": None}, desired)
    assert runs.to_drive(8) == ["run-9"]
    assert runs.index.names("unsettled") == sorted(states)
    runs.show("run-0000", "paused")
    runs.show("run-0001", "cancelled")
    assert (runs.index.place("run-0000"), runs.index.place("run-0001")) == ("idle", "finished")


def test_cancelled_runs_that_had_begun_are_driven_to_their_end_a_few_at_a_time():
    states = {f"run-{n:04}": "paused" for n in range(100)}
    runs = Runs(states, dict.fromkeys(states, "cancelled"))
    for run_id in states:
        runs.show(run_id, "paused", prompts="sha256:0")
    assert runs.to_drive(8) == sorted(states)[:8]


def test_a_paused_run_is_driven_only_while_it_has_workers():
    runs = Runs({"run-1": "paused", "run-2": None, "run-3": "succeeded"}, {"run-1": "paused"})
    assert runs.index.place("run-1") == "idle"
    assert runs.to_drive(8, {"run-1", "run-3", "run-unknown"}) == ["run-1", "run-2"]
    runs.request("run-1", "running")
    assert runs.to_drive(8) == ["run-1", "run-2"], "it is resumed, and the oldest"


def test_keys_are_parsed_only_near_the_head_of_the_queue():
    runs = Runs({"run-1": None, "run-2": None, "run-3": None})
    runs.put("run-2.spec", b"rotten")
    assert runs.to_drive(1) == ["run-1"]
    assert runs.index.unreadable() == {}
    assert runs.to_drive(2) == ["run-1", "run-3"]
    assert list(runs.index.unreadable()) == ["run-2"]


def test_a_run_that_could_be_read_is_not_read_again_for_each_status_but_for_one_that_cannot_be(monkeypatch):
    runs, read = Runs({"run-1": "running"}), []
    monkeypatch.setattr(index_module, "read_run", lambda *keys: read.append(keys[0]) or read_run(*keys))
    for version in range(5):
        runs.show("run-1", "running", progress=RunProgress(version=version))
        assert runs.to_drive(1) == ["run-1"]
    assert read == ["run-1"]
    runs.put("run-1.status", b"rotten")
    assert (runs.to_drive(1), list(runs.index.unreadable())) == ([], ["run-1"])
    runs.show("run-1", "running")
    assert runs.to_drive(1) == ["run-1"], "it was repaired"


@pytest.mark.parametrize("key", ["spec", "desired", "status"])
def test_unreadable_runs_do_not_count_as_queued_until_they_are_repaired(key):
    runs = Runs({"run-1": None, "run-2": None, "run-3": None}, {"run-1": "cancelled"} if key == "status" else {})
    runs.put(f"run-1.{key}", b"\xff rotten")
    assert runs.to_drive(1) == ["run-2"]
    assert runs.upcoming() == ["run-2", "run-3"]
    assert f"run-1.{key} in the bucket `runs` cannot be read" in runs.index.unreadable()["run-1"]
    runs.put("run-1.desired", None)
    runs.put("run-1.status", None)
    runs.submit("run-1")
    assert runs.upcoming() == ["run-1", "run-2", "run-3"]


def test_a_user_with_many_runs_delays_no_other_users_run_by_more_than_one():
    runs = Runs()
    for n in range(60):
        runs.submit(f"run-a{n:02}", "alice")
    runs.submit("run-b", "bob")
    assert runs.upcoming()[:3] == ["run-a00", "run-b", "run-a01"]
    runs.show("run-a00", "running")
    runs.serve("alice", 1)
    assert runs.upcoming(["run-a00"])[:2] == ["run-b", "run-a01"], "alice has a trainer"
    assert runs.index.to_drive(2, {"run-a00"}, ["run-a00"]) == ["run-a00", "run-b", "run-a01"]
    runs.show("run-a00", "succeeded")
    assert runs.upcoming()[:2] == ["run-b", "run-a01"], "alice was served, bob never"


def test_each_queue_has_its_own_order_and_its_head_is_driven():
    runs = Runs()
    for n in range(4):
        runs.submit(f"run-{n}", "alice", "team-a" if n % 2 else "default")
    runs.submit("run-4", "bob", "team-a")
    assert (runs.upcoming(), runs.upcoming(queue="team-a")) == (["run-0", "run-2"], ["run-1", "run-4", "run-3"])
    assert sorted(runs.to_drive(1)) == ["run-0", "run-1"], "a long queue keeps no other one waiting"
    runs.serve("alice", 5)
    assert runs.upcoming(queue="team-a") == ["run-4", "run-1", "run-3"], "she was served last, in whatever queue"
    runs.submit("run-5", "bob", "team-b")
    assert (runs.index.queue_of("run-5"), runs.upcoming(queue="team-b")) == ("team-b", ["run-5"])
    assert runs.upcoming(["run-2"], queue="team-a") == ["run-4", "run-1", "run-3"], "a trainer of another queue does not count"


def test_of_users_with_equally_many_trainers_the_one_served_longest_ago_is_next():
    runs = Runs()
    for run_id, key_id, served in (("run-1", "alice", 30), ("run-2", "bob", 10), ("run-3", "carol", 20)):
        runs.submit(run_id, key_id)
        runs.serve(key_id, served)
    assert runs.upcoming() == ["run-2", "run-3", "run-1"]
    runs.serve("bob", 40)
    assert runs.upcoming() == ["run-3", "run-1", "run-2"]


def test_a_run_that_is_deleted_gives_its_user_no_earlier_turn():
    runs = Runs()
    runs.submit("run-1", "alice")
    runs.serve("alice", 1)
    runs.show("run-1", "succeeded")
    for kind in ("spec", "status"):
        runs.put(f"run-1.{kind}", None)
    runs.submit("run-2", "alice")
    runs.submit("run-3", "bob")
    assert runs.upcoming() == ["run-3", "run-2"]


def test_a_run_that_yielded_waits_behind_the_others_of_its_user_and_does_not_take_its_trainer_back():
    runs = Runs({"run-1": None, "run-2": None})
    runs.submit("run-3", "bob")
    runs.submit("run-4", "bob")
    runs.serve("k", 5)
    runs.serve("bob", 6)
    runs.show("run-1", "queued", yielded_unix_ns=7)
    assert runs.upcoming(["run-3"]) == ["run-2", "run-4", "run-1"]
    runs.show("run-2", "succeeded")
    assert runs.upcoming(["run-3"]) == ["run-4", "run-1"], "bob has a trainer, but nobody was served since run-1 yielded"
    runs.serve("bob", 8)
    assert runs.upcoming(["run-3"]) == ["run-1", "run-4"], "run-4 took its turn, or did not want it"


def test_a_run_whose_trainer_the_index_does_not_show_yet_does_not_wait():
    runs = Runs({"run-1": "queued", "run-2": None})
    assert runs.upcoming(["run-1"]) == ["run-2"]


def test_a_run_that_is_to_be_deleted_stays_known_until_its_last_key_is_gone():
    runs = Runs({"run-1": "succeeded"}, {"run-1": "deleted"})
    assert runs.index.place("run-1") == "deleted"
    for kind in ("spec", "status"):
        runs.put(f"run-1.{kind}", None)
        assert runs.index.names("deleted") == ["run-1"]
    runs.put("run-1.desired", None)
    assert runs.index.place("run-1") is None


CHANGES = st.tuples(
    st.sampled_from(["run-1", "run-2", "run-3"]),
    st.one_of(
        st.tuples(st.just("spec"), st.sampled_from([None, RunRecord(run_id="r", spec=SPEC, created_unix_ns=1).to_bytes(), b"rotten"])),
        st.tuples(st.just("desired"), st.sampled_from([None, b'"running"', b'"paused"', b'"cancelled"', b'"deleted"', b"rotten"])),
        st.tuples(
            st.just("status"),
            st.one_of(
                st.none(),
                st.just(b"rotten"),
                st.builds(
                    lambda state, prompts, ending, yielded: RunStatus(
                        state=state, prompts=prompts, ending=ending, yielded_unix_ns=yielded
                    ).to_bytes(),
                    st.sampled_from(STATES),
                    st.sampled_from(["", "sha256:0"]),
                    st.sampled_from([None, "failed"]),
                    st.sampled_from([0, 1, 3]),
                ),
            ),
        ),
        st.just(("evaluations", b"{}")),
        st.tuples(st.just("served"), st.sampled_from([None, b"1", b"2", b"rotten"])),
    ),
)


@given(st.lists(CHANGES, max_size=30))
def test_an_index_kept_by_changes_is_the_index_of_what_there_is(changes):
    runs = Runs()
    for run_id, (kind, value) in changes:
        runs.put(f"{run_id}.{kind}", value)
    fresh = RunIndex(runs.view)
    assert runs.index._names == fresh._names
    assert runs.index._places == fresh._places
    assert sorted(name for names in fresh._names.values() for name in names) == sorted(fresh._places), "each run is in one place"
    assert runs.to_drive(2) == fresh.to_drive(2, set())
    assert runs.upcoming() == list(fresh.upcoming((), "default")), "every conductor finds the same run first"
