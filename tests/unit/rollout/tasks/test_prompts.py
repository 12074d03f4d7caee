from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from gradbus.errors import DatasetError, ModelError
from gradbus_rollout.tasks import prompts as prompts_module
from gradbus_rollout.tasks.prompts import PromptEncoder, PromptTable

TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}a{% endif %}"
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def chat_folder(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model_folder)
    return model_folder


def test_text_is_tokenised_as_the_tokenizer_does_and_decodes_without_special_tokens(model_folder):
    encoder = PromptEncoder(model_folder, 8)
    assert list(encoder.encode("abc", 0)) == AutoTokenizer.from_pretrained(model_folder)("abc")["input_ids"]
    assert encoder.decode([3, 4, 1]).replace(" ", "") == "ab"


@pytest.mark.parametrize("clean_up", [True, False])
def test_many_responses_decode_as_each_alone(model_folder, clean_up):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.clean_up_tokenization_spaces = clean_up
    tokenizer.save_pretrained(model_folder)
    encoder = PromptEncoder(model_folder, 8)
    responses = [(3, 4, 1), (), (1,), (0, 5, 1, 6), (29, 30)]
    assert encoder.decode_all(responses) == [encoder.decode(ids) for ids in responses]


def test_messages_go_through_the_template_with_the_generation_prompt(chat_folder):
    encoder = PromptEncoder(chat_folder, 8)
    assert encoder.encode(CHAT, 0) == encoder.encode("[hi]a", 0)


def test_messages_without_a_template_are_refused(model_folder):
    with pytest.raises(ModelError, match="no chat template"):
        PromptEncoder(model_folder, 8).encode(CHAT, 0)


@pytest.mark.parametrize("prompt", [7, None, [], "", [{"role": "user"}], ["hi"], {"role": "user"}])
def test_a_prompt_of_another_kind_names_its_row(chat_folder, prompt):
    with pytest.raises(DatasetError, match="line 12"):
        PromptEncoder(chat_folder, 8).encode(prompt, 12)


@pytest.mark.parametrize(("max_new", "max_prompt", "limit"), [(1014, None, 10), (8, 5, 5), (1020, 500, 4)])
def test_a_prompt_too_long_names_row_length_and_limit(model_folder, max_new, max_prompt, limit):
    encoder = PromptEncoder(model_folder, max_new, max_prompt)
    assert len(encoder.encode("a" * limit, 0)) == limit
    with pytest.raises(DatasetError, match=f"line 3 has {limit + 1} tokens, at most {limit} fit"):
        encoder.encode("a" * (limit + 1), 3)


def test_a_response_that_fills_the_context_is_refused(model_folder):
    with pytest.raises(ModelError, match="lower max_new_tokens"):
        PromptEncoder(model_folder, 1024)


@pytest.mark.parametrize(("named", "expected"), [(5, {1, 5}), ([5, 6], {1, 5, 6}), (None, {1})])
def test_stop_ids_are_the_union_of_all_that_name_one(model_folder, named, expected):
    (model_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert PromptEncoder(model_folder, 8, extra_stop_ids=(9,)).stop_token_ids == expected | {9}


def test_a_tokenizer_that_cannot_be_read_is_a_model_error(model_folder):
    (model_folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer"):
        PromptEncoder(model_folder, 8)


def test_a_prompt_of_a_table_is_named_by_its_line_in_the_file(model_folder):
    encoder = PromptEncoder(model_folder, 8)
    content = b'\n{"prompt": "abc"}\n\n{"prompt": ""}\n'
    with pytest.raises(DatasetError, match="line 4 has an empty prompt"):
        PromptTable(encoder, content)
    assert PromptTable(encoder, b'\n{"prompt": "abc"}\n\n{"prompt": "ab"}\n').ids(1) == encoder.encode("ab", 4)


def test_of_a_large_dataset_a_bounded_number_of_rows_is_kept_as_ids(model_folder, monkeypatch):
    monkeypatch.setattr(prompts_module, "_CHECKED_ROWS", 2)
    monkeypatch.setattr(prompts_module, "_KEPT_ROWS", 3)
    encoder, encoded = PromptEncoder(model_folder, 8), []
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda prompt, line: (encoded.append(line), encode(prompt, line))[1])
    table = PromptTable(encoder, b'{"prompt": "abc"}\n' * 5)
    assert encoded == [1, 2]
    assert [table.ids(row) for row in range(5)] == [encode("abc", 0)] * 5
    assert encoded == [1, 2, 3, 4, 5]
    table.ids(4)
    assert encoded == [1, 2, 3, 4, 5], "the newest are kept"
    table.ids(0)
    assert encoded == [1, 2, 3, 4, 5, 1]
