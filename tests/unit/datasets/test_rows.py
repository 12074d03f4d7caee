"""JSON Lines and the prompts in them."""

import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.datasets import jsonl
from gradbus.datasets.jsonl import MAX_ROW_BYTES, numbered
from gradbus.datasets.rows import MAX_COLUMNS
from gradbus.errors import DatasetError
from gradbus.spec import RowColumns

CHAT = [{"role": "user", "content": "hello"}]
TEXT = st.text(min_size=1)


def rows(data):
    return [row for _, row in numbered(io.BytesIO(data))]


def lines(*found):
    return "\n".join(json.dumps(row) for row in found).encode()


@given(st.lists(st.dictionaries(TEXT, TEXT), min_size=1))
def test_rows_survive_a_round_trip(found):
    assert rows(lines(*found)) == found


def test_workers_see_every_prompt_on_the_line_of_its_row_and_nothing_else(prompts_of):
    prompts = ["a", "\u2028b\x85", "c\nd"]
    data = lines(*({"question": prompt, "answer": "secret"} for prompt in prompts))
    assert prompts_of(data, RowColumns("question")) == [{"prompt": prompt} for prompt in prompts]


def test_blank_lines_and_windows_line_ends_are_no_rows():
    assert rows(b'{"a": 1}\r\n\r\n{"a": 2}\n') == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("data", "words"),
    [
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


@pytest.mark.parametrize(
    ("data", "words"),
    [(gzip.compress(b'{"a": 1}\n', mtime=0), "compressed by gzip"), ('{"a": 1}\n'.encode("utf-16"), "UTF-16"), (b"PK\x03\x04", "ZIP")],
)
def test_a_file_of_another_kind_is_called_by_its_name(data, words):
    with pytest.raises(DatasetError, match=words):
        rows(data)


def test_rows_and_lines_are_bounded(monkeypatch):
    with pytest.raises(DatasetError, match=f"line 2 has more than {MAX_ROW_BYTES} bytes"):
        rows(b"\n" + b'{"a": "' + b"x" * MAX_ROW_BYTES + b'"}')
    [(line, _)] = numbered(io.BytesIO(b'\n{"a": "' + b"x" * (MAX_ROW_BYTES - 9) + b'"}\n'))
    assert line == 2
    monkeypatch.setattr(jsonl, "MAX_LINES", 3)
    with pytest.raises(DatasetError, match="more than 3 lines"):
        rows(b"\n" * 3 + b'{"a": 1}')


@pytest.mark.parametrize("data", [b"", b" \n\n"])
def test_a_dataset_without_rows_is_refused(prepared, data):
    with pytest.raises(DatasetError, match="no rows"):
        prepared(data)


def test_a_pass_finds_rows_common_columns_and_chat(prepared):
    info, _ = prepared(lines({"prompt": "a", "answer": 1}, {"prompt": CHAT, "answer": 2, "note": "x"}))
    assert (info.rows, info.columns, info.chat) == (2, {"prompt", "answer"}, True)
    assert info.longest == len(lines({"prompt": CHAT, "answer": 2, "note": "x"}))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"promt": "a"}, "did you mean data.prompt = 'promt'"),
        ({"question": "a", "answer": "b"}, "did you mean data.prompt = 'question'"),
        ({"prompt": ""}, "empty prompt"),
        ({"prompt": 3}, "a number"),
        ({"prompt": []}, "a list"),
        ({"prompt": [{"role": "user"}]}, "a list"),
        ({"prompt": None}, "null"),
        ({"prompt": "a", **{f"c{number}": 0 for number in range(MAX_COLUMNS)}}, f"at most {MAX_COLUMNS} are taken"),
        ({"prompt": "a", "x" * 257: 0}, "a column whose name is longer than 256"),
    ],
)
def test_a_wrong_prompt_is_named_by_its_line(prepared, row, words):
    with pytest.raises(DatasetError, match=words) as refused:
        prepared(b"\n" + lines({"prompt": "fine"}, row))
    assert "line 3" in str(refused.value)


def test_a_fault_of_a_wide_row_is_short(prepared):
    with pytest.raises(DatasetError, match="and 880 more") as refused:
        prepared(lines({f"{'wide' * 50}{number}": 0 for number in range(900)}))
    assert len(str(refused.value)) < 6000


@given(st.dictionaries(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)) | st.floats() | st.integers()))
def test_every_row_is_refused_or_can_be_stored_as_a_line(row):
    data = json.dumps(row).encode()
    try:
        [found] = rows(data)
    except DatasetError:
        return
    line = jsonl.as_line(found)
    assert (rows(line), line.count(b"\n")) == ([found], 1)
