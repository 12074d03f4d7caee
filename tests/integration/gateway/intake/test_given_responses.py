"""Submissions of runs on given responses: what cannot be trained is refused with its place and what to do."""

import json

import pytest

from gradbus.client import document
from gradbus.errors import SpecError

PAIR = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
LABELLED = {"prompt": "1+1=", "completion": "2", "label": True}
CHAT = {"prompt": [{"role": "user", "content": "1+1="}], "chosen": "2", "rejected": "3"}
CASES = {
    "unknown kind": ("distil", PAIR, {}, "kind", "'reward_model'"),
    "a kind that is no text": (["dpo"], PAIR, {}, "kind", "did you mean `dpo`?"),
    "no chosen response": (
        "dpo",
        {"prompt": "1", "rejected": "3"},
        {},
        "data.train",
        "line 2 has no column 'chosen', it has prompt, rejected",
    ),
    "no rejected response": ("orpo", {"prompt": "1", "chosen": "3"}, {}, "data.train", "name the columns of the responses in [data]"),
    "a column that is nearly there": ("dpo", PAIR, {"data": {"chosen": "chosn"}}, "data.train", "did you mean 'chosen'?"),
    "no completion": ("sft", PAIR, {}, "data.train", "line 1 has no column 'completion'"),
    "equal responses": ("dpo", PAIR | {"rejected": "2"}, {}, "data.train", "line 2 has the same 'chosen' and 'rejected'"),
    "equal tokens": ("dpo", PAIR | {"chosen": "a", "rejected": "b"}, {}, "data.train", "the responses of line 2 have the same tokens"),
    "a number": ("dpo", PAIR | {"chosen": 7}, {}, "data.train", "line 2 has a number as 'chosen'; give text, or a list of messages"),
    "null": ("sft", PAIR | {"chosen": None}, {"data": {"completion": "chosen"}}, "data.train", "line 2 has null as 'chosen'"),
    "empty": ("dpo", PAIR | {"chosen": ""}, {}, "data.train", "line 2 has an empty 'chosen'"),
    "messages after text": (
        "dpo",
        PAIR | {"chosen": [{"role": "assistant", "content": "2"}]},
        {},
        "data.train",
        "give both as text, or both as messages",
    ),
    "half a surrogate pair": ("dpo", PAIR | {"chosen": "\ud800"}, {}, "data.train", "line 2"),
    "too long": (
        "dpo",
        PAIR | {"chosen": "1" * 61},
        {},
        "data.train",
        "line 2 has 4 tokens of prompt and 61 of response, 64 fit the model",
    ),
    "a prompt too long": ("dpo", PAIR | {"prompt": "1" * 65}, {}, "data.train", "line 2"),
    "chat without a template": ("dpo", CHAT, {}, "data.prompt", "chat template"),
    "no label": ("kto", LABELLED | {"label": None}, {}, "data.train", "line 2 has null as 'label'; a label is true"),
    "a label that is a number": ("kto", LABELLED | {"label": 1}, {}, "data.train", "line 2 has a number as 'label'"),
    "one prompt for all labels": ("kto", LABELLED | {"prompt": "2-1="}, {}, "data.train", "the first 2 rows have the same prompt"),
    "a column without labels": ("kto", LABELLED, {"data": {"label": "good"}}, "data.train", "line 1 has no column 'good'"),
    "adapters of a reward model": ("reward_model", PAIR, {"trainer": {"lora": {"rank": 2}}}, "trainer.lora", "no [trainer.lora]"),
    "a rounded reward model": ("reward_model", PAIR, {"trainer": {"dtype": "bf16"}}, "trainer.dtype", '"fp32"'),
    "a scorer": ("dpo", PAIR, {"reward": {"service": "grpc://127.0.0.1:1"}}, "reward", "no [reward]"),
}


@pytest.fixture
def body(tmp_path, spec):
    """Makes a spec with a good pair and one that is given."""

    def make(kind, row, **changes):
        first = LABELLED | {"prompt": "2-1="} if kind == "kto" else PAIR
        (tmp_path / "given.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(row)}\n")
        given = {name: value for name, value in spec.items() if name in {"name", "model", "schedule"}}
        return given | {"kind": kind} | changes | {"data": {"train": "given.jsonl", **changes.get("data", {})}}

    return make


def refused(client, body, folder):
    with pytest.raises(SpecError) as raised:
        client.submit(body, folder)
    return raised.value.faults


@pytest.mark.parametrize("case", CASES)
def test_a_fault_names_its_place_and_what_to_do(client, body, tmp_path, case):
    kind, row, changes, path, words = CASES[case]
    # Of a spec whose kind is not known the other sections are checked as those of a run that samples.
    fault = next(fault for fault in refused(client, body(kind, row, **changes), tmp_path) if fault.path == path)
    assert words in str(fault)


@pytest.mark.parametrize("kind", ["dpo", "ipo", "simpo", "orpo", "kto", "reward_model"])
def test_pairs_and_labels_are_taken_and_a_stored_spec_again(client, http, body, tmp_path, kind):
    run = document(client.submit(body(kind, LABELLED if kind == "kto" else PAIR), tmp_path))
    assert run["state"] == "queued"
    again = http.post("/v1/runs", json=run["spec"])
    assert (again.status_code, again.json()["spec"]) == (201, run["spec"])


def test_rows_beyond_the_first_are_left_to_the_run(client, body, tmp_path):
    given = body("dpo", PAIR)
    late = PAIR | {"chosen": "1" * 61}
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [PAIR] * 200 + [late]))
    assert client.submit(given, tmp_path).state == "queued"


def test_a_reward_model_of_a_family_without_one_is_refused(client, body, tmp_path, model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(json.dumps(config | {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}))
    faults = refused(client, body("reward_model", PAIR), tmp_path)
    assert [fault.path.partition(".")[0] for fault in faults] == ["model"]
    assert "use one of" in str(faults[0])


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_family_that_transformers_computes_needs_no_engine_where_nothing_is_sampled(client, spec, body, tmp_path, model_folder, kind):
    config = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(json.dumps(config | {"model_type": "stablelm", "architectures": ["StableLmForCausalLM"]}))
    sampled = [fault for fault in refused(client, spec, tmp_path) if fault.path == "rollout.engine"]
    assert "does not sample StableLmForCausalLM" in str(sampled[0])
    given = body(kind, PAIR, data={"completion": "chosen"} if kind == "sft" else {})
    assert client.submit(given, tmp_path).state == "queued"


def test_a_reward_model_by_its_folder_is_no_policy(client, spec, body, tmp_path, write_scorer):
    write_scorer(tmp_path / "scorer")
    [fault] = refused(client, spec | {"model": {"path": "scorer"}}, tmp_path)
    assert fault.path == "model"
    assert "LlamaForSequenceClassification" in str(fault)
