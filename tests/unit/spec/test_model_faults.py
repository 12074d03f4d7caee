"""A model has exactly one source, a path or a run, and only the settings of that source."""

import pytest

from gradbus.errors import SpecError
from gradbus.spec import ModelSpec, RunSpec, parse_spec

COMMIT = "0" * 40
DIGEST = "sha256:" + "0" * 64
LINEAGE = {"base": "model", "ancestors": [{"run": "run-1", "name": "sft", "version": 3, "digest": DIGEST}]}


def spec(**model):
    return {
        "name": "chained",
        "model": model,
        "data": {"train": "train.jsonl"},
        "reward": {"service": "grpc://127.0.0.1:1"},
        "schedule": {"steps": 1},
    }


@pytest.mark.parametrize("version", [{}, {"version": "last"}, {"version": 0}, {"version": 40}])
def test_a_model_may_be_a_version_of_a_run(version):
    parsed = parse_spec(spec(run="sft-addition", **version))
    assert parsed.model == ModelSpec(run="sft-addition", **version)
    assert RunSpec.model_validate_json(parsed.model_dump_json()) == parsed


@pytest.mark.parametrize(
    ("model", "path", "words"),
    [
        ({}, "model", "given none"),
        ({"files": {"config.json": DIGEST}}, "model", "given none"),
        ({"path": "model", "run": "sft"}, "model", "given path and run; allowed: exactly one of `path` and `run`"),
        ({"run": "sft", "revision": COMMIT}, "model.revision", "only a hub id has a revision"),
        ({"path": "model", "version": "last"}, "model.version", "only a run has versions"),
        ({"path": "model", "version": 0}, "model.version", "only a run has versions"),
        ({"path": "model", "lineage": LINEAGE}, "model.lineage", "only the model of a run has a lineage"),
        ({"run": ""}, "model.run", "a-z, 0-9 and '-'"),
        ({"run": "../secrets"}, "model.run", "a-z, 0-9 and '-'"),
        ({"run": "sft.*"}, "model.run", "a-z, 0-9 and '-'"),
        ({"run": "SFT"}, "model.run", "a-z, 0-9 and '-'"),
        ({"run": "a" * 64}, "model.run", "a-z, 0-9 and '-'"),
        ({"run": 7}, "model.run", "string"),
        *(
            ({"run": "sft", "version": value}, "model.version", '"last", or a step')
            for value in ("first", "3", 1.0, -1, True, 1 << 53, [3], {})
        ),
    ],
    ids=str,
)
def test_a_model_of_two_sources_or_none_is_refused(model, path, words):
    with pytest.raises(SpecError) as refused:
        parse_spec(spec(**model))
    [fault] = refused.value.faults
    assert fault.path == path
    assert words in str(fault)


def test_a_model_says_what_it_is():
    assert ModelSpec(path="models/base").source == "models/base"
    assert ModelSpec(run="sft").source == "version last of run sft"
    assert ModelSpec(run="sft", version=0).source == "version 0 of run sft"


def test_the_base_of_a_model_is_where_its_first_run_started():
    assert ModelSpec(path="models/base").base == "models/base"
    assert ModelSpec(path="owner/name", revision=COMMIT).base == f"owner/name@{COMMIT}"
    assert ModelSpec.model_validate({"run": "run-1", "version": 3, "lineage": LINEAGE}).base == "model"
