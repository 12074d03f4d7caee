"""Given responses get the tokens that a policy would have to sample. The folders' tokenizers have a token for each letter, from 3 on."""

import pytest

from gradbus.errors import DatasetError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}a{{ m.content }}<eos>z{% else %}b{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
STOP = 1
CHAT = [{"role": "user", "content": "ef"}]


def ids_of(letters):
    return tuple(ord(letter) - ord("a") + 3 for letter in letters)


def responses(folder, prompt, *given, template=None):
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    encoder = PromptEncoder(folder, PromptLimits(1))
    return encoder.encode_responses(prompt, given, len(encoder.encode(prompt, 7)), 7)


def test_a_text_ends_with_the_stop_token(model_folder):
    assert responses(model_folder, "abc", "de") == [(*ids_of("de"), STOP)]


def test_nothing_follows_the_first_stop_token(model_folder):
    assert responses(model_folder, "abc", "de<eos>f") == [(*ids_of("de"), STOP)]


@pytest.mark.parametrize("response", ["gh", [{"role": "assistant", "content": "gh"}]])
def test_after_messages_it_is_what_the_template_writes_up_to_the_stop_token(chat_folder, response):
    assert responses(chat_folder, CHAT, response, template=TEMPLATE) == [(*ids_of("gh"), STOP)]


def test_a_template_without_a_stop_token_gets_one(chat_folder):
    template = TEMPLATE.replace("<eos>z", "z")
    assert responses(chat_folder, CHAT, "gh", template=template) == [(*ids_of("ghz"), STOP)]


def test_a_template_that_changes_the_prompt_when_a_response_follows_is_refused(chat_folder):
    template = "{% if messages | length > 1 %}c{% endif %}" + TEMPLATE
    with pytest.raises(DatasetError, match="writes the prompt of line 7 in another way"):
        responses(chat_folder, CHAT, "gh", template=template)


def test_responses_of_the_same_tokens_are_refused(model_folder):
    with pytest.raises(DatasetError, match="responses of line 7 have the same tokens"):
        responses(model_folder, "abc", "d", "d<eos>e")


def test_a_row_that_does_not_fit_the_context_is_refused(model_folder):
    assert len(responses(model_folder, "abc", "d" * 1020)[0]) == 1021
    with pytest.raises(DatasetError, match="line 7 has 3 tokens of prompt and 1022 of response, 1024 fit"):
        responses(model_folder, "abc", "d" * 1021)


def test_a_response_of_half_a_character_is_refused(model_folder):
    with pytest.raises(DatasetError, match="no Unicode text"):
        responses(model_folder, "abc", "\ud800")


def test_of_a_conversation_the_assistants_turns_are_trained_and_nothing_else(chat_folder):
    turns = [{"role": role, "content": text} for role, text in (("assistant", "gh"), ("user", "ij"), ("assistant", "kl"), ("user", "mn"))]
    [ids] = responses(chat_folder, CHAT, turns, template=TEMPLATE)
    other = tuple(~token for token in ids_of("zbija"))
    assert ids == (*ids_of("gh"), STOP, *other, *ids_of("kl"), STOP)
