"""Long messages keep their beginning and their end, and never have more tokens than a run allows."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.turns import ChatMessage


@pytest.fixture(scope="module")
def content_of(families, turn_settings):
    """What stands in the context of a result, with so many tokens allowed, and how many tokens it has there."""
    folder, tokenizer = families("qwen").folder, families("qwen").tokenizer
    encoders = {n: PromptEncoder(folder, PromptLimits(8), turns=turn_settings(result_tokens=n)) for n in (16, 64)}

    def give(content, allowed):
        extension = encoders[allowed].grammar.extension(families("qwen").end_id, [ChatMessage("tool", content)])
        ids = [token for start, end, author in extension.spans if author == "tool" for token in extension.token_ids[start:end]]
        return tokenizer.decode(ids), len(ids)

    return give


def test_a_message_of_as_many_tokens_is_whole(content_of):
    assert content_of("a b " * 8 + "cc", 64)[0] == "a b " * 8 + "cc"


def test_of_a_longer_one_the_middle_is_cut_and_counted(content_of, families):
    content = "".join(f"{n} " for n in range(1000, 1300)).strip()
    text, tokens = content_of(content, 64)
    found = re.fullmatch(r"(1000 1001.*)\n\[\.\.\. (\d+) tokens cut \.\.\.\]\n(.*1299)", text, re.DOTALL)
    assert found
    kept = len(families("qwen").ids(found[1])) + len(families("qwen").ids(found[3]))
    assert int(found[2]) == len(families("qwen").ids(content)) - kept
    assert 50 <= tokens <= 64


def test_without_room_for_the_marker_the_beginning_is_kept(content_of):
    text, tokens = content_of("abcdefghij" * 50, 16)
    assert tokens <= 16
    assert ("abcdefghij" * 50).startswith(text)


@given(st.text(max_size=400), st.sampled_from([16, 64]))
def test_no_message_has_more_tokens(content_of, content, allowed):
    assert content_of(content, allowed)[1] <= allowed + 1, "one may begin in the message and end in the frame"
