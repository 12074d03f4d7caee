"""Which of the stored runs a conductor drives."""

from gradbus.bus import View
from gradbus.control.runs import RunRecord, RunStatus
from gradbus.spec import RunSpec
from gradbus_conductor.run.runs_bucket import queued_runs, runs_to_drive

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
    for run_id, state in (desired or {}).items():
        view._entries[f"{run_id}.desired"] = f'"{state}"'.encode()
    return view


def test_of_runs_that_only_wait_the_oldest_are_driven():
    states = {"run-4": None, "run-2": "queued", "run-1": "queued", "run-3": None}
    assert runs_to_drive(view_of(states, dict.fromkeys(states, "running")), 2) == ["run-1", "run-2"]
    assert runs_to_drive(view_of(states), 3) == ["run-1", "run-2", "run-3"]


def test_runs_under_way_are_driven_wherever_they_stand_and_those_that_are_over_are_not():
    states = {"run-1": "succeeded", "run-2": "queued", "run-3": None, "run-4": "running", "run-5": "paused", "run-6": "cancelled"}
    assert runs_to_drive(view_of(states), 1) == ["run-2", "run-4", "run-5"]


def test_a_requested_state_is_acted_upon_behind_the_longest_queue():
    states = {f"run-{n}": None for n in range(1, 6)}
    assert runs_to_drive(view_of(states, {"run-4": "cancelled", "run-5": "paused"}), 1) == ["run-1", "run-4", "run-5"]


def test_keys_are_parsed_only_near_the_head_of_the_queue():
    view = view_of({"run-1": None, "run-2": None, "run-3": None})
    view._entries["run-2.spec"] = b"rotten"
    assert runs_to_drive(view, 1) == ["run-1"]
    assert runs_to_drive(view, 2) == ["run-1", "run-2", "run-3"]


def test_unreadable_runs_do_not_count_as_queued():
    view = view_of({"run-1": None, "run-2": None, "run-3": None})
    view._entries["run-1.spec"] = b"rotten"
    assert runs_to_drive(view, 1) == ["run-1", "run-2"], "the first is skipped as unreadable"
    assert list(queued_runs(view)) == ["run-2", "run-3"]
