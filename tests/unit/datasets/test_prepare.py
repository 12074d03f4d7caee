"""From a user's files to the rows that are stored."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as arrow
import pytest
from pyarrow import parquet

from gradbus.datasets.folder import data_files
from gradbus.datasets.parquet import is_parquet
from gradbus.errors import DatasetError
from gradbus.spec import RowColumns, RowFilter

CHAT = [{"role": "user", "content": "hello"}]
ROWS = [
    {"prompt": "2+2=", "answer": {"value": 4, "parts": [2, 2]}, "level": 0.25, "note": None},
    {"prompt": "später", "answer": {"value": None, "parts": []}, "level": 1e-9, "note": "x\ny"},
]


def lines(*rows, **options):
    return "".join(json.dumps(row, **options) + "\n" for row in rows).encode()


@pytest.fixture
def as_parquet(tmp_path):
    def write(rows, name="given.parquet", **options):
        path = tmp_path / name
        parquet.write_table(arrow.Table.from_pylist(rows), path, **options)
        return path

    return write


def test_the_stored_bytes_do_not_depend_on_the_format_of_the_rows(prepared, as_parquet):
    info, stored = prepared(lines(*ROWS))
    others = [
        as_parquet(ROWS),
        as_parquet(ROWS, "small.parquet", row_group_size=1, compression="zstd", use_dictionary=False),
        lines(*ROWS, separators=(",", ":"), ensure_ascii=False),
        b"\n\r\n" + lines(*ROWS).replace(b"\n", b"\r\n").rstrip() + b"\n  \n",
    ]
    assert [prepared(other) for other in others] == [(info, stored)] * len(others)
    assert [json.loads(line) for line in stored.splitlines()] == ROWS


def test_the_rows_of_several_files_follow_each_other(prepared, as_parquet):
    info, stored = prepared(lines(ROWS[0]), as_parquet(ROWS[1:]))
    assert (info.rows, stored) == (2, prepared(lines(*ROWS))[1])


def test_times_and_decimals_are_text_and_a_missing_number_is_null(prepared, as_parquet):
    moment = datetime(2026, 11, 27, 3, 4, 5, tzinfo=UTC)
    row = {"prompt": "a", "at": moment, "price": Decimal("1.50"), "score": float("nan"), "flag": True}
    [found] = [json.loads(line) for line in prepared(as_parquet([row]))[1].splitlines()]
    assert found == {"prompt": "a", "at": "2026-11-27T03:04:05+00:00", "price": "1.50", "score": None, "flag": True}


def test_columns_get_the_names_that_the_run_reads(prepared):
    given = lines({"question": "2+2=", "solution": "4", "note": 1})
    info, stored = prepared(given, names={"prompt": "question", "answer": "solution"})
    assert stored == lines({"prompt": "2+2=", "answer": "4", "note": 1})
    assert info.columns == {"prompt", "answer", "note"}
    swapped = {"prompt": "answer", "answer": "prompt"}
    assert prepared(lines({"prompt": "4", "answer": "2+2="}), names=swapped)[1] == lines({"answer": "4", "prompt": "2+2="})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"prompt": "quastion"}, r"line 1 has no column 'quastion', it has question, answer; did you mean 'question'"),
        ({"prompt": "zzz"}, r"no column 'zzz'.*correct data.columns.prompt"),
        ({"answer": "question"}, r"line 1 has a column 'answer' already"),
    ],
)
def test_a_name_that_does_not_fit_is_a_fault(prepared, names, words):
    with pytest.raises(DatasetError, match=words):
        prepared(lines({"question": "a", "answer": "b"}), names=names)


def test_the_filter_leaves_out_rows_by_length_and_by_number(prepared):
    rows = [
        {"prompt": "x" * length, "completion": "y" * (9 - length), "level": level} for length, level in enumerate([1, 2, "2", None, 3.5], 1)
    ]
    columns = RowColumns(responses=("completion",))

    def kept(**bounds):
        info, stored = prepared(lines(*rows), columns=columns, filter=RowFilter(**bounds))
        assert info.left_out == len(rows) - info.rows
        return [len(json.loads(line)["prompt"]) for line in stored.splitlines()]

    assert kept() == [1, 2, 3, 4, 5]
    assert kept(min_prompt_characters=2, max_prompt_characters=4) == [2, 3, 4]
    assert kept(max_response_characters=5) == [4, 5]
    assert kept(ranges={"level": (2, 4)}) == [2, 5]
    with pytest.raises(DatasetError, match=r"leaves out all 5 rows; widen data\.filter"):
        kept(ranges={"other": (0, 1)})


def test_messages_have_the_length_of_their_text(prepared):
    rows = lines({"prompt": CHAT}, {"prompt": [*CHAT, *CHAT]})
    assert prepared(rows, filter=RowFilter(max_prompt_characters=5))[0].rows == 1


def test_a_file_that_is_cut_off_or_no_parquet_inside_is_refused(prepared, as_parquet):
    whole = as_parquet(ROWS * 1000).read_bytes()
    assert whole.startswith(b"PAR1")
    for broken in (whole[:-1], whole[: len(whole) // 2], b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1"):
        with pytest.raises(DatasetError, match=r"the Parquet file cannot be read .*; it may be cut off"):
            prepared(broken)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (arrow.array([b"png"]), "row 1 has bytes as 'image'"),
        (arrow.array([float("inf")]), "row 1 has an infinite number as 'image'"),
    ],
)
def test_a_column_that_no_row_can_hold_is_named(prepared, tmp_path, column, words):
    path = tmp_path / "given.parquet"
    parquet.write_table(arrow.table({"prompt": ["a"], "image": column}), path)
    with pytest.raises(DatasetError, match=words):
        prepared(path)


def test_a_wrong_row_of_parquet_is_named_by_its_number(prepared, as_parquet):
    with pytest.raises(DatasetError, match="row 2 has an empty prompt"):
        prepared(as_parquet([{"prompt": "a"}, {"prompt": ""}]))
    with pytest.raises(DatasetError, match="row 1 has more than 1048576 bytes as JSON"):
        prepared(as_parquet([{"prompt": "x" * (1 << 20)}]))


def test_rows_that_unpack_to_more_than_a_dataset_may_have_are_refused(prepared, as_parquet):
    packed = as_parquet([{"prompt": "x" * 10_000}] * 2000)
    assert packed.stat().st_size < 100_000
    with pytest.raises(DatasetError, match="the rows have more than 1000000 bytes as JSON"):
        prepared(packed, most_bytes=1_000_000)


def test_a_folder_gives_its_files_in_the_order_of_their_names(tmp_path):
    for name in ("b.parquet", "a.jsonl", "deep/c.ndjson", "config.json", "notes.txt", ".cache/hidden.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [str(file.relative_to(tmp_path)) for file in data_files(tmp_path)] == ["a.jsonl", "b.parquet", "deep/c.ndjson"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"the folder empty has no dataset; put files with one of \.jsonl"):
        data_files(tmp_path / "empty")
    assert not is_parquet(tmp_path / "notes.txt")
