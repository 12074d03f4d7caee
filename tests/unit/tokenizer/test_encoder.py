"""What a tokenizer's process computes, computed in this one."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from gradbus.errors import DatasetError, ModelError
from gradbus.tokenizer import encoder as encoder_module
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.errors import ModelFileError, described

CHAT = [{"role": "user", "content": "hi"}]


def opened(folder, *limits):
    return PromptEncoder(folder, PromptLimits(*(limits or (8,))))


def test_text_is_tokenised_as_the_tokenizer_does_and_decodes_without_special_tokens(model_folder):
    encoder = opened(model_folder)
    assert list(encoder.encode("abc", 0)) == AutoTokenizer.from_pretrained(model_folder)("abc")["input_ids"]
    assert encoder.decode([[3, 4, 1]])[0].replace(" ", "") == "ab"


@pytest.mark.parametrize("clean_up", [True, False])
def test_many_responses_decode_as_each_alone(model_folder, clean_up):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.clean_up_tokenization_spaces = clean_up
    tokenizer.save_pretrained(model_folder)
    responses = [(3, 4, 1), (), (1,), (0, 5, 1, 6), (29, 30)]
    assert opened(model_folder).decode(responses) == [tokenizer.decode(list(ids), skip_special_tokens=True) for ids in responses]


def test_messages_go_through_the_template_with_the_generation_prompt(chat_folder):
    encoder = opened(chat_folder)
    assert encoder.encode(CHAT, 0) == encoder.encode("[hi]a", 0)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role == 'x' %}{{ raise_exception('no') }}{% endif %}[{{ m.content | trim }}]{% endfor %}a",
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m['content'] }}]{% endfor %}a",
        "{% set day = strftime_now('%d %b %Y') %}{% if day | length == 11 %}[{{ messages[-1].content }}]a{% endif %}",
        "{%- for m in messages %}{% generation %}[{{ m.content }}]{% endgeneration %}{% break %}{%- endfor %}a",
        "{%- set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x + m.content %}{% endfor %}[{{ ns.x }}]a",
        "{% if enable_thinking is defined %}b{% endif %}{% if documents %}c{% endif %}[{{ messages[0].content }}]a",
    ],
)
@pytest.mark.parametrize("place", ["chat_template.jinja", "a text", "a list"])
def test_templates_of_many_kinds_are_rendered_wherever_they_stand(chat_folder, template, place):
    config = json.loads((chat_folder / "tokenizer_config.json").read_text())
    if place == "chat_template.jinja":
        (chat_folder / place).write_text(template)
    else:
        (chat_folder / "chat_template.jinja").unlink()
        named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": template}]
        config["chat_template"] = template if place == "a text" else named
    (chat_folder / "tokenizer_config.json").write_text(json.dumps(config))
    encoder = opened(chat_folder)
    assert encoder.encode(CHAT, 0) == encoder.encode("[hi]a", 0)


def test_a_vocabulary_may_be_padded_and_a_tokenizer_may_know_more_than_the_model(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.add_tokens([f"<{n}>" for n in range(100)])
    tokenizer.save_pretrained(model_folder)
    encoder = opened(model_folder)
    assert encoder.decode([[3, 63]])[0].startswith("a")
    with pytest.raises(ModelError, match=r"gives id \d+, the model has 64"):
        encoder.encode("a<99>", 0)


def test_a_prompt_has_at_most_as_many_tokens_as_a_row_has_bytes(model_folder, monkeypatch):
    monkeypatch.setattr(encoder_module, "_MAX_PROMPT_TOKENS", 20)
    assert len(opened(model_folder).encode("a" * 20, 0)) == 20
    with pytest.raises(DatasetError, match="line 3 has 21 tokens, at most 20 fit"):
        opened(model_folder).encode("a" * 21, 3)


def test_messages_without_a_template_are_refused(model_folder):
    with pytest.raises(ModelError, match="no chat template"):
        opened(model_folder).encode(CHAT, 0)


@pytest.mark.parametrize("prompt", [7, None, [], "", [{"role": "user"}], ["hi"], {"role": "user"}])
def test_a_prompt_of_another_kind_names_its_row(chat_folder, prompt):
    with pytest.raises(DatasetError, match="line 12"):
        opened(chat_folder).encode(prompt, 12)


@pytest.mark.parametrize("prompt", ["a\ud800", [{"role": "user", "content": "a\udfff"}], [{"role": "\ud800", "content": "a"}]])
def test_half_of_a_surrogate_pair_names_its_row(chat_folder, prompt):
    with pytest.raises(DatasetError, match="line 12 is no Unicode text"):
        opened(chat_folder).encode(prompt, 12)


@pytest.mark.parametrize(("max_new", "max_prompt", "limit"), [(1014, None, 10), (8, 5, 5), (1020, 500, 4)])
def test_a_prompt_too_long_names_row_length_and_limit(model_folder, max_new, max_prompt, limit):
    encoder = opened(model_folder, max_new, max_prompt)
    assert len(encoder.encode("a" * limit, 0)) == limit
    with pytest.raises(DatasetError, match=f"line 3 has {limit + 1} tokens, at most {limit} fit"):
        encoder.encode("a" * (limit + 1), 3)


def test_a_response_that_fills_the_context_is_refused(model_folder):
    with pytest.raises(ModelError, match="lower max_new_tokens"):
        opened(model_folder, 1024)


@pytest.mark.parametrize(("named", "expected"), [(5, {1, 5}), ([5, 6], {1, 5, 6}), (None, {1})])
def test_stop_ids_are_the_union_of_all_that_name_one(model_folder, named, expected):
    (model_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert opened(model_folder, 8, None, (9,)).stop_token_ids == expected | {9}


@pytest.mark.parametrize("named", [["a", {}], "</s>", {}, 1.5, True, -1, 2**31, [[1]], [None], list(range(2000)), [10**4000]])
def test_stop_ids_that_are_no_token_ids_name_their_file(model_folder, named):
    (model_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    with pytest.raises(ModelFileError, match=r"eos_token_id|is not JSON") as failed:
        opened(model_folder)
    assert failed.value.file == "generation_config.json"
    assert len(str(failed.value)) < 1000


@pytest.mark.parametrize("content", ["[1]", "1", "{", "", "[" * 50_000, '{"eos_token_id": ' + "[" * 50_000])
def test_a_generation_config_that_is_no_object_names_its_file_and_no_path(model_folder, content):
    (model_folder / "generation_config.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"is not JSON|is not a JSON object") as failed:
        opened(model_folder)
    assert failed.value.file == "generation_config.json"
    assert str(model_folder) not in str(failed.value)


@pytest.mark.parametrize(
    "content",
    ["{}", "[1]", "", "[" * 50_000 + "]" * 50_000, '{"model": ' + '{"a": ' * 50_000, '{"version": "1.0", "model": {"type": "BPE"}}'],
)
def test_a_tokenizer_that_cannot_be_read_is_a_model_error(model_folder, content):
    (model_folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError, match="tokenizer") as failed:
        opened(model_folder)
    assert failed.value.file == "tokenizer.json"


@pytest.mark.parametrize("content", ["[1]", "{", "[" * 50_000, '{"a": ' + "[" * 65 + "]" * 65 + "}", '{"a": "\\ud800"}'])
def test_a_configuration_that_a_worker_would_not_read_names_its_file(model_folder, content):
    (model_folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"is not JSON|is not a JSON object") as failed:
        opened(model_folder)
    assert failed.value.file == "tokenizer_config.json"


def test_a_decoder_that_makes_much_of_little_is_refused(model_folder):
    content = json.loads((model_folder / "tokenizer.json").read_text())
    content["decoder"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 10_000}
    (model_folder / "tokenizer.json").write_text(json.dumps(content))
    encoder = opened(model_folder)
    assert len(encoder.decode([[4]])[0]) == 1
    with pytest.raises(ModelFileError, match="1 tokens decode to 10000 characters"):
        encoder.decode([[4], [3]])


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% include 'x' %}", "TypeError: no loader"),
        ("{{ messages[9].content.x }}", "UndefinedError"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ range(10 ** 9) | list }}", "OverflowError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ '\\ud800' }}", "UnicodeEncodeError"),
        ("{% set x = [] %}{{ x.append(x) }}{{ x | tojson }}", "ValueError|SecurityError"),
        ("{{ messages | map('float') | sum + 'a' }}", "TypeError|ValueError"),
        ("{{ " + "(" * 5000 + " }}", "RecursionError|TemplateSyntaxError|MemoryError"),
    ],
)
def test_a_template_that_fails_names_itself_the_row_and_the_cause(chat_folder, template, cause):
    (chat_folder / "chat_template.jinja").write_text(template)
    encoder = opened(chat_folder)
    with pytest.raises(ModelFileError, match=f"line 12 \\(.*({cause})") as failed:
        encoder.encode(CHAT, 12)
    assert failed.value.file == "chat_template.jinja"


def test_what_a_template_refuses_on_purpose_is_the_datas_fault(chat_folder):
    (chat_folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DatasetError, match=r"refuses the messages of line 12 \(roles must alternate\)"):
        opened(chat_folder).encode(CHAT, 12)


def test_a_tokenizer_that_draws_its_tokens_draws_nothing(model_folder):
    path = model_folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    vocabulary = whole["model"]["vocab"] | {"ab": 40, "cd": 41, "abcd": 42}
    merges = [["a", "b"], ["c", "d"], ["ab", "cd"]]
    model = {"type": "BPE", "dropout": 0.9, "vocab": vocabulary, "merges": merges, "unk_token": "<unk>"}
    path.write_text(json.dumps(whole | {"model": model, "pre_tokenizer": None}))
    encoder = opened(model_folder)
    assert {encoder.encode("abcd" * 8, 1) for _ in range(8)} == {(42,) * 8}


def test_a_field_that_transformers_refuses_is_named_with_what_is_wrong(model_folder):
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attention_dropout": "much"}))
    with pytest.raises(ModelFileError, match=r"^config\.json: .*field 'attention_dropout': .*much.*; correct the field$"):
        opened(model_folder)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("no", "no"), ("no\nmore", "no"), ("fault:\n   cause\nmore", "fault: cause"), ("fault:", "fault:"), ("\ud800", "\\ud800")],
)
def test_an_error_is_described_in_one_line(text, shown):
    assert described(ValueError(text)) == f"ValueError: {shown}"
