import json

import pytest

from gradbus.bus import View
from gradbus.control.runs import RunRecord, RunStatus
from gradbus.embedded.watches import KeptServices, NeededServices
from gradbus.spec import RunSpec
from gradbus.spec.sections import EnvironmentSpec

GRADER = {"grader": {"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}}


def record(kl: float, reward: dict[str, object] = GRADER, **trainer: object) -> bytes:
    spec = RunSpec.model_validate(
        {
            "name": "run",
            "model": {"path": "/model"},
            "data": {"train": "train.jsonl", "eval": "eval.jsonl", "prompt": "prompt"},
            "reward": reward,
            "algorithm": {"kl": kl},
            "trainer": trainer,
            "schedule": {"steps": 10},
        }
    )
    return RunRecord(run_id="run-1", spec=spec, created_unix_ns=1).to_bytes()


def with_environment(**source) -> bytes:
    spec = RunRecord.model_validate_json(record(0.0)).spec
    spec = spec.model_copy(update={"environment": EnvironmentSpec(**source or {"service": "http://127.0.0.1:1/world"})})
    return RunRecord(run_id="run-1", spec=spec, created_unix_ns=1).to_bytes()


def view_of(entries: dict[str, bytes]) -> View:
    view = View(None, "runs", "*.*")
    view._entries.update(entries)
    return view


def reference_needed(entries: dict[str, bytes]) -> bool:
    return "reference" in NeededServices(view_of(entries)).names


@pytest.mark.parametrize(
    ("kl", "state", "needed"),
    [
        (0.0, "running", False),
        (0.1, None, True),
        (0.1, "queued", True),
        (0.1, "paused", True),
        (0.1, "succeeded", False),
        (0.1, "failed", False),
    ],
)
def test_the_reference_is_needed_while_a_run_with_a_penalty_is_live(kl, state, needed):
    entries = {"run-1.spec": record(kl), "run-1.desired": json.dumps("running").encode()}
    if state:
        entries["run-1.status"] = RunStatus(state=state).to_bytes()
    assert reference_needed(entries) is needed


def test_one_live_run_among_others_is_enough():
    over = RunStatus(state="succeeded").to_bytes()
    assert reference_needed({"run-1.spec": record(0.1), "run-1.status": over, "run-2.spec": record(0.0), "run-3.spec": record(0.1)})


def test_a_run_with_adapters_asks_for_none():
    assert not reference_needed({"run-1.spec": record(0.1, lora={"rank": 2})})


def test_a_run_with_a_reward_model_needs_it_too():
    assert reference_needed({"run-1.spec": record(0.0, {"model": {"path": "/scorer"}}, lora={"rank": 2})})


def test_what_cannot_be_read_asks_for_nothing():
    assert not reference_needed({"run-1.spec": b"{", "run-2.spec": b"{}"})
    assert reference_needed({"run-1.spec": record(0.1), "run-1.status": b"{"})


def test_what_is_needed_follows_each_change_of_a_run():
    view = view_of({"run-1.spec": record(0.0)})
    needed = NeededServices(view)

    def change(key: str, value: bytes | None) -> bool:
        view._entries.pop(key, None) if value is None else view._entries.update({key: value})
        for listener in view._listeners:
            listener(key)
        return "reference" in needed.names

    assert not change("run-1.status", RunStatus(state="running").to_bytes())
    assert change("run-2.spec", record(0.1))
    assert change("run-2.desired", b'"paused"')
    assert change("run-2.status", RunStatus(state="running").to_bytes())
    assert not change("run-2.status", RunStatus(state="cancelled").to_bytes())
    assert not change("run-2.spec", None)


def test_the_environment_service_is_needed_while_a_run_with_an_environment_is_live():
    assert NeededServices(view_of({"run-1.spec": record(0.1), "run-2.spec": with_environment()})).names == {"reference", "environment"}
    assert NeededServices(view_of({"run-1.spec": with_environment(agent="pull")})).names == {"agent"}
    over = RunStatus(state="succeeded").to_bytes()
    assert NeededServices(view_of({"run-2.spec": with_environment(), "run-2.status": over})).names == frozenset()


def test_a_service_is_kept_for_a_while_after_the_last_run_that_needs_it():
    kept = KeptServices(10.0)
    assert (kept.update({"reference"}, 0.0), kept.next_end) == ({"reference"}, None)
    assert (kept.update({"agent"}, 5.0), kept.next_end) == ({"reference", "agent"}, 15.0)
    assert (kept.update(frozenset(), 8.0), kept.next_end) == ({"reference", "agent"}, 15.0), "another look does not prolong it"
    assert (kept.update(frozenset(), 15.0), kept.next_end) == ({"agent"}, 18.0)
    assert (kept.update({"agent"}, 16.0), kept.next_end) == ({"agent"}, None), "a run needs it again"
    assert (kept.update(frozenset(), 30.0), kept.next_end) == ({"agent"}, 40.0)
    assert (kept.update(frozenset(), 41.0), kept.next_end) == (frozenset(), None)
