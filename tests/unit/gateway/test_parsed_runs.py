"""Parsed runs are kept as long as nothing of them changes, and no more of them than there is room for."""

import weakref

import pytest

from gradbus.control.runs import RunRecord, RunStatus
from gradbus.spec import parse_spec
from gradbus_gateway.runs import parsed_runs
from gradbus_gateway.runs.parsed_runs import ParsedRuns, RunKeys

SPEC = {
    "name": "listed",
    "model": {"path": "model"},
    "data": {"train": "train.jsonl"},
    "reward": {"grader": {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "1"}},
    "schedule": {"steps": 3},
}


@pytest.fixture
def keys():
    def make(step=0, run_id="run", annotations=None):
        status = RunStatus(state="running", reason=f"step {step}").model_dump_json().encode()
        record = RunRecord(run_id=run_id, spec=parse_spec(SPEC), created_unix_ns=1, key_id="key")
        return RunKeys(record.to_bytes(), b'"running"', status, annotations)

    return make


def test_a_run_is_parsed_again_only_when_a_key_has_changed(keys):
    runs = ParsedRuns()
    first = runs.read("run", keys())
    assert runs.read("run", keys()) is first
    assert runs.read("run", keys(step=1)).status.reason == "step 1"
    assert runs.read("run", keys(step=1, annotations=b'{"tags": ["a"]}')).annotations.tags == ("a",)
    assert "run.annotations" in runs.read("run", keys(step=1, annotations=b"[]")).reason


def test_what_a_run_was_before_its_status_changed_is_not_kept(keys):
    """A run reports its progress each second, to as many lists as are read: the gateway grew by 16 KB with each."""
    runs = ParsedRuns()
    before = weakref.ref(runs.read("run", keys()).status)
    runs.read("run", keys(step=1))
    assert before() is None


@pytest.mark.parametrize(("name", "most"), [("_MOST_RUNS", 2), ("_MOST_BYTES", 6000)])
def test_the_runs_that_were_read_last_are_kept(keys, monkeypatch, name, most):
    monkeypatch.setattr(parsed_runs, name, most)
    runs = ParsedRuns()
    assert 2 * keys().size < 6000 < 3 * keys().size
    found = {run_id: weakref.ref(runs.read(run_id, keys()).status) for run_id in ("a", "b")}
    runs.read("a", keys())
    runs.read("c", keys())
    assert found["a"]() is not None
    assert found["b"]() is None


def test_long_notes_push_no_run_out(keys, monkeypatch):
    """A page of a thousand runs with notes was parsed again at every look."""
    monkeypatch.setattr(parsed_runs, "_MOST_BYTES", 6000)
    runs = ParsedRuns()
    noted = {run_id: keys(run_id=run_id, annotations=b'{"note": "%s"}' % (b"x" * 4000)) for run_id in ("a", "b")}
    found = [runs.read(*one) for one in noted.items()]
    assert all(runs.read(*one) is run for one, run in zip(noted.items(), found, strict=True))


def test_a_deleted_run_is_forgotten(keys):
    runs = ParsedRuns()
    status = weakref.ref(runs.read("run", keys()).status)
    runs.forget("run")
    runs.forget("run")
    assert status() is None
