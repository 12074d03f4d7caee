"""Rows of a dataset as prompts, by a tokenizer in its own process."""

from __future__ import annotations

import json

import pytest

from gradbus.errors import DatasetError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer
from gradbus_rollout.tasks import prompts as prompts_module
from gradbus_rollout.tasks.prompts import PromptTable

LIMITS = PromptLimits(8)
TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}a"


@pytest.fixture
async def tokenizer(fork_server, model_folder):
    (model_folder / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = await Tokenizer.open(fork_server, model_folder, LIMITS, Deadlines(load=60, call=60))
    yield tokenizer
    await tokenizer.close()


@pytest.fixture
def encoded(tokenizer, monkeypatch):
    """Lines of the prompts that were encoded."""
    lines, encode = [], tokenizer.encode

    async def noted(prompts):
        lines.extend(given.line for given in prompts)
        return await encode(prompts)

    monkeypatch.setattr(tokenizer, "encode", noted)
    return lines


@pytest.fixture
def rows(row_file):
    def written(*prompts):
        return row_file(b"".join(json.dumps({"prompt": prompt}).encode() + b"\n" for prompt in prompts))

    return written


async def test_a_prompt_of_a_table_is_named_by_its_line(tokenizer, model_folder, rows):
    with pytest.raises(DatasetError, match="line 2 has an empty prompt"):
        await PromptTable.open(tokenizer, rows("abc", ""))
    table = await PromptTable.open(tokenizer, rows("abc", "ab"))
    assert await table.ids([1]) == [PromptEncoder(model_folder, LIMITS).encode("ab", 2)]


async def test_texts_are_the_prompt_or_what_the_template_made_of_its_messages(tokenizer, rows):
    chat = [{"role": "user", "content": "hi"}]
    table = await PromptTable.open(tokenizer, rows("abc", chat, "d"))
    for _ in range(2):
        texts = await table.texts([1, 0, 1, 2])
        assert [text.replace(" ", "") for text in texts] == ["[hi]a", "abc", "[hi]a", "d"]


async def test_of_a_large_dataset_a_bounded_number_of_rows_is_kept_as_ids(tokenizer, encoded, monkeypatch, rows):
    monkeypatch.setattr(prompts_module, "_CHECKED_ROWS", 2)
    monkeypatch.setattr(prompts_module, "_KEPT_ROWS", 3)
    table = await PromptTable.open(tokenizer, rows(*["abc"] * 5))
    assert encoded == [1, 2]
    (expected,) = await table.ids([0])
    assert [await table.ids([row]) for row in range(5)] == [[expected]] * 5
    assert encoded == [1, 2, 3, 4, 5]
    await table.ids([4])
    assert encoded == [1, 2, 3, 4, 5], "the newest are kept"
    await table.ids([0])
    assert encoded == [1, 2, 3, 4, 5, 1]
    assert await table.ids([4, 3, 2, 1, 0, 4]) == [expected] * 6, "more at once than are kept"


async def test_rows_of_many_tokens_are_kept_up_to_a_bound_of_tokens(tokenizer, encoded, monkeypatch, rows):
    monkeypatch.setattr(prompts_module, "_KEPT_SIZE", 3 * len("abcd") * 2)
    table = await PromptTable.open(tokenizer, rows(*["abcd"] * 5))
    await table.ids([2, 3, 4])
    await table.texts([2, 3, 4])
    assert encoded == [1, 2, 3, 4, 5]
    await table.ids([1])
    assert encoded == [1, 2, 3, 4, 5, 2]


async def test_texts_that_a_template_made_count_too(tokenizer, encoded, monkeypatch, rows):
    monkeypatch.setattr(prompts_module, "_KEPT_SIZE", 10)
    table = await PromptTable.open(tokenizer, rows([{"role": "user", "content": "hi"}], "ab"))
    assert encoded == [1, 2]
    await table.texts([0])
    await table.texts([1])
    assert encoded == [1, 2, 2], "the text of row 0 took the room of row 1"


async def test_the_check_of_the_first_rows_takes_a_bounded_time(tokenizer, encoded, monkeypatch, rows):
    monkeypatch.setattr(prompts_module, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(prompts_module, "_CHECK_SECONDS", 0.0)
    await PromptTable.open(tokenizer, rows(*["abc"] * 5))
    assert encoded == [1, 2]
