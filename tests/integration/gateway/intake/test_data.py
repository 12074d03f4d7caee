"""Datasets of several formats, through the command's client and a gateway."""

import json

import pyarrow as arrow
import pytest
from pyarrow import parquet

from gradbus.client import document
from gradbus.errors import SpecError

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "level": a} for a in range(4) for b in range(4)]


@pytest.fixture
def data(spec, tmp_path):
    """The spec's rows as JSON Lines, and as Parquet in two files of a folder."""
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "parts").mkdir()
    for name, part in {"a": ROWS[:5], "b": ROWS[5:]}.items():
        parquet.write_table(arrow.Table.from_pylist(part), tmp_path / "parts" / f"{name}.parquet", row_group_size=2)
    return spec


def stored(client, spec, tmp_path, **data):
    return document(client.check({**spec, "data": data}, tmp_path))["spec"]["data"]


def test_the_same_rows_are_the_same_dataset_in_every_format(client, data, tmp_path, objects):
    given = ["train.jsonl", "parts", ["parts/a.parquet", "parts/b.parquet"]]
    assert len({stored(client, data, tmp_path, train=source)["train"] for source in given}) == 1
    mixed = stored(client, data, tmp_path, mixture=[{"source": "parts", "weight": 3}, {"source": "train.jsonl"}], eval="train.jsonl")
    assert ([part["rows"] for part in mixed["mixture"]], mixed["eval"]) == (
        [16, 16],
        stored(client, data, tmp_path, train="parts")["train"],
    )
    assert document(client.check({**data, "data": mixed}, tmp_path))["spec"]["data"] == mixed, "a stored spec can be submitted again"


async def test_names_and_filters_decide_what_is_stored(client, data, tmp_path, objects):
    changed = {"columns": {"question": "prompt"}, "prompt": "question", "filter": {"ranges": {"level": [3, 9]}}}
    found = stored(client, data, tmp_path, train="parts", **changed)
    lines = (await objects.get_blob(found["train"])).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"question": row["prompt"], "answer": row["answer"], "level": 3} for row in ROWS if row["level"] == 3
    ]


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"train": "cut.parquet"}, "data.train", "the Parquet file cannot be read"),
        ({"train": "parts", "columns": {"prompt": "quest"}}, "data.train", "row 1 of sha256:"),
        ({"train": "empty"}, "data.train", "the folder empty has no dataset"),
        ({"mixture": []}, "data.train", "required field is missing"),
        ({"mixture": [{"source": "parts", "weight": 0}]}, "data.mixture.0.weight", "greater than 0"),
        ({"train": "parts", "mixture": [{"source": "parts"}]}, "data.mixture.0.source", "in place of `train`"),
        ({"train": 7}, "data.train", "names no files"),
        ({"train": "parts", "filter": {"max_prompt_characters": 2}}, "data.train", "leaves out all 16 rows"),
    ],
)
def test_a_fault_of_the_data_names_its_place_and_what_to_do(client, data, tmp_path, change, path, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "parts" / "a.parquet").read_bytes()[:-9])
    with pytest.raises(SpecError) as refused:
        stored(client, data, tmp_path, **change)
    assert [fault.path for fault in refused.value.faults if words in str(fault)] == [path]
