"""An invalid input is refused with its field and a remedy; an accepted run that cannot work ends in a named state."""

import json
import shutil

import pytest

from gradbus.errors import SpecError


def faults(lab, body):
    with pytest.raises(SpecError) as refused:
        lab.submit(body)
    return {fault.path: str(fault) for fault in refused.value.faults}


@pytest.fixture
def model(models, tmp_path):
    """A copy of a model folder that a test may damage."""
    return shutil.copytree(models / "llama", tmp_path / "model")


def test_toml_that_is_none_is_refused_by_the_command(gradbus, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text("name = \n[model")
    said = gradbus("run", path)
    assert (said.returncode, "not TOML" in said.stderr, "Traceback" in said.stderr) == (2, True, False)


def test_every_fault_comes_at_once_with_the_nearest_name(gradbus, spec, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(
        'name = "Not A Name"\nsead = 1\n[model]\npath = "nowhere"\n[data]\ntrain = "gone.jsonl"\n'
        "[rollout]\ntemprature = 0.5\ngroup_size = 0\n[reward]\n[schedule]\nsteps = 0\nmode = 'fixed_lagg'\n"
    )
    said = gradbus("run", path).stderr
    for words in (
        "name:",
        "`seed`?",
        "model.path:",
        "data.train:",
        "`temperature`?",
        "rollout.group_size",
        "reward:",
        "schedule.steps",
        "`fixed_lag`?",
    ):
        assert words in said, words


def test_data_that_cannot_be_used_names_its_place(lab, spec, rows, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "the file is empty" in faults(lab, spec(data={"train": str(empty)}))["data.train"]
    assert "no column 'prompt'" in faults(lab, spec(data={"train": rows([{"promt": "a"}])}))["data.train"]
    assert "data.train" in faults(lab, spec(data={"train": str(tmp_path / "gone.jsonl")}))
    assert "prompt" in faults(lab, spec(data={"train": rows([{"prompt": 7}])}))["data.train"]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("tokenizer.json", None, "tokenizer"),
        ("model.safetensors", None, "safetensors"),
        ("config.json", {"architectures": ["BertLMHeadModel"], "model_type": "bert"}, "Qwen2"),
    ],
)
def test_a_model_that_cannot_be_used_names_why(lab, spec, model, name, change, words):
    path = model / name
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert words in faults(lab, spec(model={"path": str(model)}))["model"]


def test_a_model_that_transformers_computes_needs_a_server(lab, spec, model):
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}))
    assert "does not sample GPT2LMHeadModel" in faults(lab, spec(model={"path": str(model)}))["rollout.engine"]


def test_pickled_weights_are_refused(lab, spec, model):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "safetensors" in faults(lab, spec(model={"path": str(model)}))["model"]


def test_weights_that_are_not_the_models_are_refused(lab, spec, model):
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 64}))
    assert "have another shape than in this model" in faults(lab, spec(model={"path": str(model)}))["model"]


def test_code_that_a_model_names_never_runs(lab, spec, model, tmp_path):
    trap = tmp_path / "trapped"
    (model / "evil.py").write_text(f"open({str(trap)!r}, 'w')\nclass Evil: ...\n")
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((model / name).read_text()) | {"auto_map": {"AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}}
        (model / name).write_text(json.dumps(content))
    lab.train(spec(model={"path": str(model)}))
    assert not trap.exists()


def test_a_prompt_longer_than_the_model_is_refused_with_line_and_limit(lab, spec, rows):
    train = rows([{"prompt": "sun and", "answer": "moon"}, {"prompt": "sun and " * 80, "answer": "moon"}])
    fault = faults(lab, spec(data={"train": train}))["data.train"]
    assert "line 2" in fault
    assert "at most 58 fit" in fault


def test_a_template_that_fails_on_the_first_rows_is_refused_by_its_file(lab, spec, model, rows):
    (model / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    train = rows([{"prompt": [{"role": "user", "content": "sun"}], "answer": "moon"}])
    found = faults(lab, spec(model={"path": str(model)}, data={"train": train}))
    assert "ZeroDivisionError" in found["model.files.chat_template.jinja"]


@pytest.mark.parametrize(
    ("last", "template", "reason"),
    [
        ("sun and " * 80, "{{ messages[0].content }}", "line 301 has"),
        ("zero", "{{ 1 / 0 if messages[0].content == 'zero' else 'sun' }}", "the messages of line 301 (ZeroDivisionError"),
    ],
)
def test_a_later_row_that_fails_ends_the_run_and_names_its_line(lab, spec, model, rows, last, template, reason):
    (model / "chat_template.jinja").write_text(template)
    contents = [*["sun and"] * 300, last]
    train = rows({"prompt": [{"role": "user", "content": content}], "answer": "moon"} for content in contents)
    run = lab.ends(lab.submit(spec(model={"path": str(model)}, data={"train": train})), "failed")
    assert reason in run["reason"]


def test_after_all_this_the_stack_trains(lab, spec):
    lab.train(spec())
