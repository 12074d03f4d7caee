"""Runs on Parquet and on mixtures, on the whole stack."""

from collections import Counter

import pyarrow as arrow
import pytest
from pyarrow import parquet

WORDS = ["moon", "sun", "star", "rain", "wind", "snow", "fire"]
ROWS = [{"prompt": f"{word} and", "answer": word, "level": at} for at, word in enumerate(WORDS)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The rows as Parquet."""
    path = tmp_path_factory.mktemp("packed") / "train.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS), path, row_group_size=2)
    return str(path)


def test_the_format_of_the_rows_changes_no_bit(lab, spec, rows, packed):
    runs = [lab.train(spec(data={"train": train})) for train in (rows(ROWS), packed)]
    assert len({lab.final_digest(run) for run in runs}) == 1
    assert all(lab.learned(run) for run in runs)


def test_a_mixture_has_its_shares_in_every_step(lab, spec, rows, packed):
    other = rows({"question": f"{number} and", "level": 0} for number in range(3))
    body = spec(schedule={"steps": 6})
    mixture = [{"source": packed, "weight": 3}, {"source": other, "columns": {"prompt": "question"}}]
    body["data"] = {"mixture": mixture, "filter": {"ranges": {"level": [0, 4]}}}
    run = lab.train(body)
    assert [part["rows"] for part in run["spec"]["data"]["mixture"]] == [5, 3]
    groups = {sample["index"]: (sample["step"], sample["row_index"], sample["prompt"]) for sample in lab.samples(run["id"])}
    assert Counter(step for step, row, _ in groups.values() if row >= 5) == dict.fromkeys(range(6), 1)
    assert all(prompt.endswith(f"{row - 5} and") for _, row, prompt in groups.values() if row >= 5)
    assert {row for _, row, _ in groups.values()} == set(range(8)), "18 groups go through all of the five rows, 6 through the three"
