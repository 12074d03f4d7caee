"""Which of the stored runs a conductor looks after."""

from gradbus.bus import View
from gradbus.control.runs import RunRecord, RunStatus
from gradbus.spec import RunSpec
from gradbus_conductor.run.known_runs import queued, to_drive

SPEC = RunSpec.model_validate(
    {"name": "one", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}, "schedule": {"steps": 1}}
)


def view_of(states, desired=None):
    """Run id to state (None: nobody has looked at it) as the bucket holds them."""
    view = View(None, "runs", ">")
    for run_id, state in states.items():
        view._entries[f"{run_id}.spec"] = RunRecord(run_id=run_id, spec=SPEC, created_unix_ns=1, key_id="k").to_bytes()
        if state:
            view._entries[f"{run_id}.status"] = RunStatus(state=state).to_bytes()
    for run_id, wish in (desired or {}).items():
        view._entries[f"{run_id}.desired"] = f'"{wish}"'.encode()
    return view


def test_of_runs_that_only_wait_the_oldest_are_driven():
    states = {"run-4": None, "run-2": "queued", "run-1": "queued", "run-3": None}
    assert to_drive(view_of(states, dict.fromkeys(states, "running")), 2) == ["run-1", "run-2"]
    assert to_drive(view_of(states), 3) == ["run-1", "run-2", "run-3"]


def test_runs_under_way_are_driven_wherever_they_stand_and_those_that_are_over_are_not():
    states = {"run-1": "succeeded", "run-2": "queued", "run-3": None, "run-4": "running", "run-5": "paused", "run-6": "cancelled"}
    assert to_drive(view_of(states), 1) == ["run-2", "run-4", "run-5"]


def test_a_wish_is_seen_to_behind_the_longest_queue():
    states = {f"run-{n}": None for n in range(1, 6)}
    assert to_drive(view_of(states, {"run-4": "cancelled", "run-5": "paused"}), 1) == ["run-1", "run-4", "run-5"]


def test_whether_a_run_can_be_read_is_looked_into_when_its_turn_is_near():
    view = view_of({"run-1": None, "run-2": None, "run-3": None})
    view._entries["run-2.spec"] = b"rotten"
    assert to_drive(view, 1) == ["run-1"]
    assert to_drive(view, 2) == ["run-1", "run-2", "run-3"]


def test_runs_that_cannot_be_read_take_nobodys_place():
    view = view_of({"run-1": None, "run-2": None, "run-3": None})
    view._entries["run-1.spec"] = b"rotten"
    assert to_drive(view, 1) == ["run-1", "run-2"], "the first is passed over by its fault"
    assert list(queued(view)) == ["run-2", "run-3"]
