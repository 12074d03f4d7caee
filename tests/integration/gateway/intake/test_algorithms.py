"""Submissions whose algorithm cannot be what it is called: refused with the place, the reason and what to set."""

import json

import pytest

from gradbus.errors import SpecError

GAE = {"name": "ppo"}
LETTERS = {character: number for number, character in enumerate("?0123456789+=-x ")}
CASES = {
    "an unknown preset": ({"algorithm": {"name": "grop"}}, "algorithm.name", "did you mean `grpo`?"),
    "an unknown estimator": ({"algorithm": {"advantage": "gea"}}, "algorithm.advantage", "did you mean `gae`?"),
    "a preset that is no text": ({"algorithm": {"name": ["grpo"]}}, "algorithm.name", "'grpo'"),
    "a field of another algorithm": ({"algorithm": {"name": "grpo", "lambda": 0.9}}, "algorithm.lambda", "unknown field"),
    "one sample a prompt without a baseline": (
        {"algorithm": {"name": "qae"}, "rollout": {"max_new_tokens": 8, "group_size": 1}},
        "rollout.group_size",
        "smaller groups are never trained",
    ),
    "a critic that nothing reads": ({"trainer": {"critic": {}}}, "trainer.critic", "reads no values"),
    "values without a critic": ({"algorithm": GAE, "trainer": {"critic": None}}, "trainer.critic", "needs a critic"),
    "a critic from elsewhere": ({"algorithm": GAE, "trainer": {"critic": {"run": "run-1"}}}, "trainer.critic.run", "unknown field"),
    "adapters of a critic that are larger than its matrices": (
        {"algorithm": GAE, "trainer": {"critic": {"kind": "lora"}}},
        "trainer.critic.rank",
        "at most 4, the hidden size",
    ),
    "a ratio of sequences by the token": ({"algorithm": {"name": "gspo", "aggregate": "token"}}, "algorithm.aggregate", "one ratio"),
    "a bound that nothing reads": ({"algorithm": {"name": "sapo", "clip": [0.2, 0.2]}}, "algorithm.clip", "does not read it"),
    "k1 in the loss": ({"algorithm": {"kl": 0.1, "kl_estimator": "k1"}}, "algorithm.kl_estimator", "'k3'"),
    "a reference without a KL": ({"algorithm": {"kl_reference_steps": 2}}, "algorithm.kl_reference_steps", "algorithm.kl above 0"),
    "rows of the whole vocabulary": (
        {"algorithm": {"name": "score_centering", "centering": 16}},
        "algorithm.centering",
        "less than vocab_size, 16",
    ),
    "a mean of something else": (
        {"algorithm": {"name": "grpo", "centering": 8}},
        "algorithm.centering",
        "trust_region = none or cap or band",
    ),
    "components of a reward that has one": ({"algorithm": {"name": "gdpo"}}, "algorithm.advantage", "normalises each component"),
    "a teacher that nothing reads": ({"teacher": {"path": "model"}}, "teacher.coefficient", 'algorithm.advantage = "distill"'),
}


def refused(client, body, folder):
    with pytest.raises(SpecError) as raised:
        client.submit(body, folder)
    return {fault.path: str(fault) for fault in raised.value.faults}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_names_its_place_and_what_to_do(client, spec, tmp_path, case):
    changes, path, words = CASES[case]
    found = refused(client, spec | changes, tmp_path)
    assert list(found) == [path]
    assert words in found[path]


def test_a_teacher_of_another_vocabulary_is_refused_with_the_first_token(client, spec, tmp_path, write_model, write_tokenizer):
    write_tokenizer(write_model(tmp_path / "teacher"), model={"type": "WordLevel", "vocab": LETTERS | {"1": 3, "2": 2}, "unk_token": "?"})
    given = {name: value for name, value in spec.items() if name != "reward"} | {"data": {"train": "train.jsonl"}}
    found = refused(client, given | {"algorithm": {"name": "opd"}, "teacher": {"path": "teacher"}}, tmp_path)
    assert list(found) == ["teacher.files.tokenizer.json"]
    assert "token '1' has id 3, not 2" in found["teacher.files.tokenizer.json"]


def test_turns_that_the_template_does_not_write_cannot_be_trained(client, spec, tmp_path, model_folder):
    """Labels are where the template writes what the assistant said, and this one leaves it out."""
    template = "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
    (model_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    turns = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    (tmp_path / "turns.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    given = {name: value for name, value in spec.items() if name in {"name", "model", "schedule"}}
    found = refused(client, given | {"kind": "sft", "data": {"train": "turns.jsonl", "messages": "messages"}}, tmp_path)
    assert set(found) <= {"data.train", "model.files.tokenizer_config.json", "model"}
    assert any("template" in fault or "assistant" in fault for fault in found.values()), found
