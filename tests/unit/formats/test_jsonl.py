"""JSON Lines and the prompts in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.errors import DatasetError
from gradbus.formats.jsonl import MAX_COLUMNS, MAX_LINES, MAX_ROW_BYTES, inspect, prompts_object, rows
from gradbus.spec import RowColumns

CHAT = [{"role": "user", "content": "hello"}]
TEXT = st.text(min_size=1)


def lines(*found):
    return "\n".join(json.dumps(row) for row in found).encode()


@given(st.lists(st.dictionaries(TEXT, TEXT), min_size=1))
def test_rows_survive_a_round_trip(found):
    assert rows(lines(*found)) == found


@given(st.lists(TEXT, min_size=1))
def test_the_prompts_object_keeps_order_and_drops_all_else(prompts):
    data = lines(*({"question": prompt, "answer": "secret"} for prompt in prompts))
    assert rows(prompts_object(data, RowColumns("question"))) == [{"prompt": prompt} for prompt in prompts]


def test_the_prompts_object_keeps_every_prompt_on_its_line():
    data = b'\n{"prompt": "a", "answer": 1}\n\n \n{"prompt": "b"}\n'
    assert prompts_object(data, RowColumns("prompt")) == b'\n{"prompt": "a"}\n\n\n{"prompt": "b"}\n'


def test_blank_lines_and_windows_line_ends_are_no_rows():
    assert rows(b'{"a": 1}\r\n\r\n{"a": 2}\n') == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no rows"),
        (b" \n\n", "no rows"),
        (b'{"a": 1}\n{\n', r"line 2 is not JSON \(Expecting .*, column 2\)"),
        (b"[1]", "line 1 is a list"),
        (b"\xff", "line 1 is not JSON"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"a": 1}\n{"a": ["\\ud83d"]}', r"line 2 is not JSON \(a.0 has half of a surrogate pair"),
        (b'{"\\udc00": 1}', "a name with half of a surrogate pair"),
        (b'{"a": "\xed\xa0\x80"}', "line 1 is not JSON .*utf-8"),
        (b'{"a": 1e999}', "line 1 is not JSON .*64-bit floats"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 1 is not JSON .*64-bit floats"),
        (b'{"a": NaN}', "line 1 is not JSON"),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "more than 64 lists and objects"),
    ],
)
def test_what_is_no_dataset_is_named_by_its_line(data, words):
    with pytest.raises(DatasetError, match=words):
        rows(data)


def test_rows_and_lines_are_bounded():
    with pytest.raises(DatasetError, match=f"line 2 has {MAX_ROW_BYTES + 9} bytes, at most {MAX_ROW_BYTES}"):
        rows(b"\n" + b'{"a": "' + b"x" * MAX_ROW_BYTES + b'"}')
    with pytest.raises(DatasetError, match=f"more than {MAX_LINES} lines"):
        rows(b"\n" * MAX_LINES + b'{"a": 1}')


def test_inspection_finds_rows_common_columns_and_chat():
    info = inspect(lines({"prompt": "a", "answer": 1}, {"prompt": CHAT, "answer": 2, "note": "x"}), RowColumns("prompt"))
    assert (info.rows, info.columns, info.chat) == (2, {"prompt", "answer"}, True)
    assert info.longest == len(lines({"prompt": CHAT, "answer": 2, "note": "x"}))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"promt": "a"}, "did you mean data.prompt = 'promt'"),
        ({"prompt": ""}, "empty prompt"),
        ({"prompt": 3}, "a number"),
        ({"prompt": []}, "a list"),
        ({"prompt": [{"role": "user"}]}, "a list"),
        ({"prompt": None}, "null"),
        ({"prompt": "a", **{f"c{number}": 0 for number in range(MAX_COLUMNS)}}, f"at most {MAX_COLUMNS} are taken"),
        ({"prompt": "a", "x" * 257: 0}, "a column whose name is longer than 256"),
    ],
)
def test_a_wrong_prompt_is_named_by_its_line(row, words):
    with pytest.raises(DatasetError, match=words) as refused:
        inspect(b"\n" + lines({"prompt": "fine"}, row), RowColumns("prompt"))
    assert "line 3" in str(refused.value)


def test_a_fault_of_a_wide_row_is_short():
    with pytest.raises(DatasetError, match="and 880 more") as refused:
        inspect(lines({f"{'wide' * 50}{number}": 0 for number in range(900)}), RowColumns("prompt"))
    assert len(str(refused.value)) < 6000


@given(st.dictionaries(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)) | st.floats() | st.integers()))
def test_every_row_is_refused_or_can_be_sent_as_json_and_utf_8(row):
    data = json.dumps(row | {"prompt": "a"}).encode()
    try:
        inspect(data, RowColumns("prompt"))
    except DatasetError:
        return
    [found] = rows(data)
    assert rows(json.dumps(found, ensure_ascii=False, allow_nan=False).encode()) == [found]
