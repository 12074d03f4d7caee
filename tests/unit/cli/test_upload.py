"""What lies on the user's machine travels by digest."""

import math

import pytest

from gradbus.client.upload import merged_faults, upload_local_files, with_local_names
from gradbus.errors import Fault
from gradbus.formats.safetensors import header, read_headers
from gradbus.ids import digest_of


@pytest.fixture
def folder(tmp_path, write_model):
    (tmp_path / "train.jsonl").write_bytes(b"rows")
    (tmp_path / "grade.py").write_text("def grade(sample, item): ...")
    write_model(tmp_path / "model")
    (tmp_path / "model" / "notes.md").write_text("stays behind")
    return tmp_path


def test_files_become_digests_and_the_given_spec_stays(folder):
    sent = {}
    spec = {"model": {"path": "model"}, "data": {"train": "train.jsonl", "eval": "elsewhere.jsonl"}}
    body, faults = upload_local_files(spec, folder, lambda path, digest: sent.update({path.name: digest}))
    assert faults == []
    assert body["data"] == {"train": digest_of(b"rows"), "eval": "elsewhere.jsonl"}
    assert set(body["model"]["files"]) == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert set(sent) == {"train.jsonl", *body["model"]["files"]}
    assert spec["data"]["train"] == "train.jsonl"


def test_of_a_tied_head_with_other_values_nothing_is_sent(folder):
    path = folder / "model" / "model.safetensors"
    tensors = {name: (tensor.dtype, tensor.shape) for name, tensor in read_headers([path]).items()}
    zeros = bytes(sum(4 * math.prod(shape) for _, shape in tensors.values()))
    path.write_bytes(header({**tensors, "lm_head.weight": ("F32", (16, 4))}) + zeros + bytes(4 * 64))
    assert upload_local_files({"model": {"path": "model"}}, folder, lambda *_: None)[1] == []
    path.write_bytes(path.read_bytes()[:-1] + b"\x3f")
    _, faults = upload_local_files({"model": {"path": "model"}}, folder, pytest.fail)
    assert [(fault.path, "set tie_word_embeddings to false" in fault.message) for fault in faults] == [("model", True)]


def test_a_hub_id_and_given_files_are_left_alone(folder):
    for model in ({"path": "owner/name", "revision": "x"}, {"path": "model", "files": {"a": "sha256:0"}}):
        assert upload_local_files({"model": model}, folder, pytest.fail)[0]["model"] == model


def test_a_reward_model_travels_as_the_policy_does(folder, write_scorer):
    sent = []
    write_scorer(folder / "scorer")
    body, faults = upload_local_files({"reward": {"model": {"path": "scorer"}}}, folder, lambda path, _: sent.append(path.name))
    assert faults == []
    assert sorted(sent) == sorted(body["reward"]["model"]["files"]) == sorted(path.name for path in (folder / "scorer").iterdir())
    _, faults = upload_local_files({"reward": {"model": {"path": "model"}}}, folder, pytest.fail)
    assert [fault.path for fault in faults] == ["reward.model"]
    assert "which are no reward model" in faults[0].message
    gone = Fault("reward.model.path", "not a folder", "nowhere", "roots")
    named = with_local_names({"reward": {"model": {"path": "nowhere"}}}, folder, gone)
    assert (named.given, "`reward.model.revision`" in named.allowed) == (str(folder / "nowhere"), True)


def test_a_teacher_travels_as_the_policy_does(folder, write_scorer):
    body, faults = upload_local_files({"teacher": {"path": "model", "coefficient": 0.5}}, folder, lambda *_: None)
    assert faults == []
    assert body["teacher"]["coefficient"] == 0.5
    assert set(body["teacher"]["files"]) == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    write_scorer(folder / "scorer")
    _, faults = upload_local_files({"teacher": {"path": "scorer"}}, folder, pytest.fail)
    assert [fault.path for fault in faults] == ["teacher"]
    named = with_local_names({"teacher": {"path": "nowhere"}}, folder, Fault("teacher.path", "not a folder", "nowhere", "roots"))
    assert (named.given, "`teacher.revision`" in named.allowed) == (str(folder / "nowhere"), True)


def test_python_graders_are_inlined_at_every_depth(folder):
    part = {"type": "python", "file": "grade.py"}
    spec = {"reward": {"grader": {"type": "multi", "graders": {"a": dict(part), "b": dict(part)}, "calculate_output": "a"}}}
    body, faults = upload_local_files(spec, folder, pytest.fail)
    assert faults == []
    assert all(
        grader == {"type": "python", "source": "def grade(sample, item): ..."} for grader in body["reward"]["grader"]["graders"].values()
    )


def test_local_faults_are_gathered(folder):
    (folder / "model" / "tokenizer.json").unlink()
    spec = {"model": {"path": "model"}, "reward": {"grader": {"type": "python", "file": "gone.py"}}}
    _, faults = upload_local_files(spec, folder, pytest.fail)
    assert [fault.path for fault in faults] == ["model", "reward.grader.file"]


def test_what_is_there_and_cannot_be_read_is_a_fault_of_its_field(folder):
    (folder / "notes.txt").write_text("no folder")
    _, faults = upload_local_files({"model": {"path": "notes.txt"}, "data": {"train": "model", "eval": "x" * 999}}, folder, pytest.fail)
    assert [fault.path for fault in faults] == ["model", "data.train", "data.eval"]
    assert "Hugging Face layout" in faults[0].message
    assert faults[1].message.startswith("the folder model has no dataset")
    assert faults[2].message == "cannot be read: File name too long"


def test_a_path_that_no_file_can_have_is_left_to_the_server_or_a_fault(folder):
    spec = {"model": {"path": "~nobody-of-that-name/x"}, "reward": {"grader": {"type": "python", "file": "a\0b"}}}
    body, faults = upload_local_files(spec, folder, pytest.fail)
    assert body["model"] == spec["model"]
    assert [fault.path for fault in faults] == ["reward.grader.file"]


@pytest.mark.parametrize(
    "spec", [{}, {"model": "x", "data": 3, "reward": []}, {"model": {"path": 7}, "data": {"train": None}, "reward": {"grader": 1}}]
)
def test_a_malformed_spec_goes_to_the_server_as_it_is(folder, spec):
    assert upload_local_files(spec, folder, pytest.fail) == (spec, [])


def test_this_side_s_word_stands_where_both_speak_of_one_place():
    near = [Fault("model", "no tokenizer")]
    far = [Fault("model.path", "not readable"), Fault("model", "empty"), Fault("modelling", "unknown"), Fault("data.train", "gone")]
    assert [fault.path for fault in merged_faults(near, far)] == ["model", "modelling", "data.train"]


def test_a_server_s_fault_is_told_with_the_user_s_own_names(folder):
    spec = {"model": {"path": "nowhere"}, "data": {"train": "train.jsonl", "eval": digest_of(b"else")}}
    gone = with_local_names(spec, folder, Fault("model.path", "not a folder", "nowhere", "roots"))
    assert gone.given == str(folder / "nowhere")
    assert gone.message.startswith("neither on this machine nor on the server")
    assert "a hub id" in gone.allowed
    assert with_local_names(spec, folder, Fault("data.train", "no rows", digest_of(b"rows"))).given == "train.jsonl"
    for fault in (Fault("data.eval", "not stored", digest_of(b"else")), Fault("seed", "too large", "9"), Fault("model", "no tokenizer")):
        assert with_local_names(spec, folder, fault) == fault
    assert with_local_names({"model": 7}, folder, Fault("model.path", "missing")) == Fault("model.path", "missing")


def test_the_file_of_a_shadows_grader_becomes_its_source(tmp_path):
    (tmp_path / "own.py").write_text("def grade(sample, item): ...")
    reward = {"shadow": {"one": {"grader": {"type": "python", "file": "own.py"}}, "two": {"grader": {"type": "python", "file": "no.py"}}}}
    body, faults = upload_local_files({"reward": reward}, tmp_path, pytest.fail)
    assert body["reward"]["shadow"]["one"]["grader"] == {"type": "python", "source": "def grade(sample, item): ..."}
    assert [fault.path for fault in faults] == ["reward.shadow.two.grader.file"]
