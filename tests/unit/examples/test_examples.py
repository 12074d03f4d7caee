"""The example models and data are what the specs beside them say they are."""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
import tomllib
from http.server import ThreadingHTTPServer

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradbus.graders import check_grader
from gradbus.spec import parse_spec


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def copy_folder(copying, tmp_path_factory):
    return copying.make(tmp_path_factory.mktemp("examples") / "copy", copying.Settings(rows=200))


@pytest.fixture(scope="module")
def chat_folder(chat, tmp_path_factory):
    return chat.make(tmp_path_factory.mktemp("examples") / "chat")


def test_every_sum_appears_once_and_is_right(addition):
    problems = list(addition.problems())
    assert len({row["prompt"] for row in problems}) == 10_000
    for row in problems:
        left, right = row["prompt"].rstrip("=").split("+")
        assert int(row["answer"]) == int(left) + int(right)
        assert len(row["answer"]) == 3


def test_a_tenth_is_held_out_whatever_the_digits(addition, tiny_models):
    held_out = [row["prompt"] for row in addition.problems() if tiny_models.held_out(row["prompt"])]
    assert 900 < len(held_out) < 1100
    # No pair of last digits is hidden from training, nor missing from the evaluation.
    assert {(prompt[1], prompt[4]) for prompt in held_out} == {(a, b) for a in "0123456789" for b in "0123456789"}


def test_no_row_is_both_trained_and_evaluated(copy_folder):
    train, evaluation = rows(copy_folder / "train.jsonl"), rows(copy_folder / "eval.jsonl")
    assert len(train) + len(evaluation) == 200
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in evaluation}


def test_the_copying_prompts_differ_in_length(copy_folder):
    assert {len(row["prompt"]) for row in rows(copy_folder / "train.jsonl")} == {5, 6, 7, 8}


def test_the_tokenizer_gives_one_token_a_character_and_none_in_front(copy_folder):
    tokenizer = AutoTokenizer.from_pretrained(copy_folder / "model")
    assert len(tokenizer) == 56
    for row in rows(copy_folder / "eval.jsonl"):
        ids = tokenizer(row["prompt"]).input_ids
        assert len(ids) == len(row["prompt"])
        assert tokenizer.decode(ids) == row["prompt"]


def test_the_models_are_small_float32_and_of_two_families(copy_folder, chat_folder):
    families = set()
    for folder in (copy_folder, chat_folder):
        model = AutoModelForCausalLM.from_pretrained(folder / "model")
        families.add(model.config.model_type)
        assert model.num_parameters() < 100_000
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert families == {"qwen2", "llama"}


def test_equal_seeds_give_equal_weights(copying, tmp_path):
    weights = []
    for name, seed in (("first", 1), ("second", 1), ("third", 2)):
        folder = copying.make(tmp_path / name, copying.Settings(seed=seed, rows=20))
        weights.append((folder / "model/model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_a_model_is_made_again_only_when_its_settings_change(copying, tmp_path):
    settings = copying.Settings(rows=20)
    folder = copying.make(tmp_path / "copy", settings)
    (folder / "kept").touch()
    copying.make(folder, settings)
    assert (folder / "kept").exists()
    copying.make(folder, dataclasses.replace(settings, rows=21))
    assert not (folder / "kept").exists()


def test_an_interrupted_make_leaves_nothing_that_looks_finished(copying, tiny_models, tmp_path):
    def interrupted(target):
        target.mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_models.cached(tmp_path / "copy", copying.Settings(), interrupted)
    assert list(tmp_path.iterdir()) == []


def test_the_warm_up_stops_by_accuracy_and_never_sees_a_held_out_sum(addition, tiny_models):
    tokenizer = tiny_models.character_tokenizer()
    model = tiny_models.tiny_qwen2(tokenizer, seed=0)
    seen = []
    settings = addition.Settings(target_accuracy=0.002, batch=64)
    addition.warm_up(model, tokenizer, settings, lambda step, accuracy, seconds: seen.append((step, accuracy)))
    assert seen[-1][1] >= settings.target_accuracy
    assert all(accuracy < settings.target_accuracy for _, accuracy in seen[:-1])


def test_exact_match_counts_whole_answers_only(addition, tiny_models):
    tokenizer = tiny_models.character_tokenizer()
    tokens = addition.answer_tokens(tokenizer, list(addition.problems())[:4])

    class Oracle(torch.nn.Module):
        def forward(self, input_ids, use_cache):
            logits = torch.nn.functional.one_hot(tokens[:, 1:], 56).float()
            logits[0, -1, 5] = 2.0  # the first row does not end
            return type("Output", (), {"logits": logits})

    assert addition.exact_match(Oracle(), tokens) == 0.75


def test_chat_messages_go_through_the_template(chat_folder):
    tokenizer = AutoTokenizer.from_pretrained(chat_folder / "model")
    messages = [{"role": "user", "content": "more e"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == "<user>more e<assistant>"


COLUMNS = [("addition", {"prompt", "answer"}), ("copy", {"prompt", "answer"}), ("chat", {"prompt", "letter"})]


@pytest.mark.parametrize(("name", "columns"), COLUMNS)
def test_the_specs_are_sound(examples, name, columns):
    folder = examples / name
    body = tomllib.loads((folder / f"{name}.toml").read_text())
    for grader in body["reward"].get("grader", {}).get("graders", {}).values():
        if "file" in grader:
            grader["source"] = (folder / grader.pop("file")).read_text()
    spec = parse_spec(body)
    assert spec.is_deterministic
    if spec.reward.grader:
        assert check_grader(spec.reward.grader, columns) == []


@pytest.mark.parametrize(("text", "share"), [("065", 1.0), ("0650", 1.0), ("165", 2 / 3), ("06", 2 / 3), ("", 0.0)])
def test_the_digits_grader_counts_right_positions(examples, text, share):
    names = {}
    exec((examples / "addition/digits.py").read_text(), names)
    assert names["grade"]({"output_text": text}, {"answer": "065"}) == pytest.approx(share)


def test_the_reward_server_answers_by_sample_id(reward_server):
    server = ThreadingHTTPServer(("127.0.0.1", 0), reward_server.Score)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    samples = [
        {"sample_id": "0.0", "response": "eeze", "item": {"letter": "e"}},
        {"sample_id": "0.1", "response": "", "item": {"letter": "e"}},
    ]
    client = http.client.HTTPConnection(*server.server_address, timeout=60)
    client.request("POST", "/score", json.dumps({"samples": samples}))
    results = json.loads(client.getresponse().read())["results"]
    server.shutdown()
    server.server_close()
    assert results == [
        {"sample_id": "0.0", "status": "ok", "reward": 0.75},
        {"sample_id": "0.1", "status": "ok", "reward": 0.0},
    ]
