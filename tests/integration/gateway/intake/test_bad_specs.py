"""What is wrong with a spec is said at once, all of it."""

import json

import pytest

from gradbus.client import document
from gradbus.errors import SpecError

CASES = {
    "unknown field": ({"rollout": {"temprature": 1.0}}, "rollout.temprature", "temperature"),
    "unknown section": ({"trainr": {}}, "trainr", "trainer"),
    "missing dataset": ({"data": {"train": "nowhere.jsonl"}}, "data.train", "not a file or folder that the server may read"),
    "missing blob": ({"data": {"train": "sha256:" + "0" * 64}}, "data.train", "not stored"),
    "missing column": ({"data": {"train": "train.jsonl", "prompt": "promt"}}, "data.train", "line 1 has no column 'promt'"),
    "empty dataset": ({"data": {"train": "empty.jsonl"}}, "data.train", "no rows"),
    "dataset that is no JSON": ({"data": {"train": "broken.jsonl"}}, "data.train", "line 2 is not JSON"),
    "chat without a template": ({"data": {"train": "chat.jsonl"}}, "data.prompt", "chat template"),
    "held-out rows missing": ({"data": {"train": "train.jsonl"}, "evaluation": {"every": 5}}, "data.eval", "held-out"),
    "response longer than the model": ({"rollout": {"max_new_tokens": 64}}, "rollout.max_new_tokens", "64 in all"),
    "model that is nowhere": ({"model": {"path": "elsewhere"}}, "model.path", "neither on this machine"),
    "hub id without a revision": ({"model": {"path": "owner/name"}}, "model.path", "model.revision"),
    "folder that is no model": ({"model": {"path": "."}}, "model", "cannot read"),
    "grader file that is nowhere": ({"reward": {"grader": {"type": "python", "file": "no.py"}}}, "reward.grader.file", "cannot be read"),
    "metadata service": ({"reward": {"service": "http://169.254.169.254/x"}}, "reward.service", "metadata"),
    "host nobody allowed": ({"reward": {"service": "http://example.com/x"}}, "reward.service", "GRADBUS_ALLOWED_HOSTS"),
    "reward model that is nowhere": ({"reward": {"model": {"path": "gone"}}}, "reward.model.path", "neither on this machine"),
    "policy as a reward model": ({"reward": {"model": {"path": "model"}}}, "reward.model", "which are no reward model"),
    "reward model without its head": ({"reward": {"model": {"path": "headless"}}}, "reward.model", "no score.weight"),
    "reward model and grader": ({"reward": {"model": {"path": "scorer"}, "service": "grpc://a:1"}}, "reward", "service and model"),
    "reward model of another tokenizer": (
        {"reward": {"model": {"path": "foreign"}}},
        "reward.model.files.tokenizer.json",
        "the policy's bytes",
    ),
    "unknown reward column": ({"reward": {"grader": {"reference": "{{ item.anser }}"}}}, "reward.grader.reference", "answer"),
    "python that does not parse": ({"reward": {"grader": {"type": "python", "source": "def"}}}, "reward.grader.source", "not Python"),
    "metric that no grader gives": ({"evaluation": {"metric": "exact"}}, "evaluation.metric", "allowed: reward"),
    "top_p": ({"rollout": {"top_p": 0.9}}, "rollout.top_p", "whole vocabulary"),
}


@pytest.fixture
def local_files(tmp_path, write_scorer, write_tokenizer):
    write_scorer(tmp_path / "scorer")
    write_scorer(tmp_path / "headless", labels=0)
    write_tokenizer(write_scorer(tmp_path / "foreign"), version="1.1")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt"\n')
    (tmp_path / "chat.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "hi"}], "answer": "x"}))


def changed(spec, change):
    body = json.loads(json.dumps(spec))
    for section, fields in change.items():
        if section == "reward" and "type" not in fields.get("grader", {"type": ""}):
            body["reward"]["grader"] |= fields["grader"]
        elif section in {"data", "reward", "model"}:
            body[section] = fields
        else:
            body.setdefault(section, {}).update(fields)
    return body


@pytest.mark.parametrize("case", CASES)
def test_a_fault_names_its_place_and_what_to_do(http, client, spec, tmp_path, local_files, case):
    change, path, words = CASES[case]
    with pytest.raises(SpecError) as refused:
        client.submit(changed(spec, change), tmp_path)
    fault = next(fault for fault in refused.value.faults if fault.path == path)
    assert words in str(fault)


def test_a_queue_that_the_operator_does_not_name_is_refused_with_those_that_there_are(client, spec, tmp_path):
    with pytest.raises(SpecError) as refused:
        client.submit(spec | {"queue": "team-a"}, tmp_path)
    [fault] = refused.value.faults
    assert fault.path == "queue"
    assert "GRADBUS_QUEUES" in str(fault)
    assert "allowed: default" in str(fault)


def test_a_fault_across_sections_is_listed_with_a_fault_of_another(client, spec, tmp_path):
    with pytest.raises(SpecError) as refused:
        client.submit(spec | {"name": "No Name", "data": {"train": "train.jsonl"}, "evaluation": {"metric": "exact"}}, tmp_path)
    assert {fault.path for fault in refused.value.faults} == {"name", "data.eval", "evaluation.metric"}


def test_a_fault_of_a_file_uses_the_name_that_its_user_gave(client, spec, tmp_path, local_files):
    with pytest.raises(SpecError) as refused:
        client.submit(spec | {"data": {"train": "empty.jsonl", "eval": "gone.jsonl"}}, tmp_path)
    given = {fault.path: fault.given for fault in refused.value.faults}
    assert given == {"data.train": "empty.jsonl", "data.eval": str(tmp_path / "gone.jsonl")}


PYTHON = {"type": "python", "source": "def grade(sample, item):\n    return 1.0\n"}
MULTI = {"type": "multi", "graders": {"a": PYTHON}, "calculate_output": "a"}


@pytest.mark.parametrize(("grader", "metric"), [(PYTHON, "length"), (MULTI, "a"), (MULTI, "a.length")])
def test_a_metric_that_a_grader_may_give_is_taken(client, spec, tmp_path, grader, metric):
    client.submit(spec | {"reward": {"grader": grader}, "evaluation": {"metric": metric}}, tmp_path)


def test_a_reward_model_is_stored_with_the_run(client, http, spec, tmp_path, local_files):
    files = document(client.submit(spec | {"reward": {"model": {"path": "scorer"}}}, tmp_path))["spec"]["reward"]["model"]["files"]
    for name, digest in files.items():
        assert http.get(f"/v1/files/{digest}").content == (tmp_path / "scorer" / name).read_bytes()


@pytest.mark.parametrize("path", ["../../../../../../../../etc", "/etc", "~", "\0"])
def test_a_path_out_of_the_roots_is_refused(http, stored_spec, path):
    answer = http.post("/v1/runs", json=stored_spec | {"model": {"path": path}, "data": {"train": path}})
    assert answer.status_code == 422
    assert {error["path"] for error in answer.json()["errors"]} == {"model.path", "data.train"}


def test_faults_of_both_sides_come_together(client, spec, tmp_path):
    wrong = spec | {"model": {"path": "."}, "data": {"train": "gone.jsonl"}, "schedule": {"steps": 0}}
    with pytest.raises(SpecError) as refused:
        client.submit(wrong, tmp_path)
    assert sorted(fault.path for fault in refused.value.faults) == ["data.train", "model", "schedule.steps"]


def test_one_response_lists_every_fault(http, stored_spec):
    body = stored_spec | {"nmae": "x", "data": {"train": "gone.jsonl"}, "model": {"path": "gone"}, "schedule": {"steps": 0}}
    answer = http.post("/v1/runs", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:gradbus:problem:invalid-spec")
    assert {error["path"] for error in answer.json()["errors"]} >= {"nmae", "data.train", "model.path", "schedule.steps"}
    assert next(error["nearest"] for error in answer.json()["errors"] if error["path"] == "nmae") == "name"


@pytest.mark.parametrize("body", ["[]", "null", '"spec"', "{}"])
def test_a_body_that_is_no_spec_is_refused(http, body):
    answer = http.post("/v1/runs", content=body)
    assert answer.status_code == 422
    assert answer.json()["errors"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("config.json", json.dumps({"architectures": ["BertLMHeadModel"]}), "use one of"),
        ("config.json", "{", "not JSON"),
    ],
)
def test_a_model_folder_under_a_root_is_checked(http, stack, stored_spec, model_folder, name, content, words):
    target = stack.roots / f"broken-{abs(hash((name, content)))}"
    model_folder.rename(target)
    (target / name).unlink() if content is None else (target / name).write_text(content)
    answer = http.post("/v1/runs", json=stored_spec | {"model": {"path": target.name}})
    assert answer.status_code == 422
    assert words in answer.json()["errors"][0]["message"]


def test_code_named_by_a_model_is_stripped(http, stack, stored_spec, model_folder):
    target = stack.roots / "with-code"
    model_folder.rename(target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.py"}}))
    answer = http.post("/v1/runs", json=stored_spec | {"model": {"path": "with-code"}})
    assert answer.status_code == 201
    stored = http.get(f"/v1/files/{answer.json()['spec']['model']['files']['config.json']}").json()
    assert stored == config


@pytest.mark.parametrize("name", ["../config.json", "a/b.json", ".hidden"])
def test_a_file_name_that_leads_out_of_a_folder_is_refused(http, stored_spec, name):
    files = stored_spec["model"]["files"]
    answer = http.post("/v1/runs", json=stored_spec | {"model": {"path": "m", "files": files | {name: files["config.json"]}}})
    assert answer.status_code == 422
    assert "plain file name" in answer.json()["errors"][0]["message"]
