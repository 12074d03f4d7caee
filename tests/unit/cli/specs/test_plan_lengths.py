"""The lengths that `gradbus plan` takes from the rows of the dataset, or why it does not."""

import json

import pytest
from plan_lab import SIZES
from pyarrow import Table, parquet
from typer.testing import CliRunner

from gradbus.cli.__main__ import app
from gradbus.cli.specs import plan_lengths

RUN = """
name = "my-run"
model.path = "base"
reward.service = "grpc://scorer:1"
schedule.steps = 10
[data]
"""


@pytest.fixture
def planned(tmp_path, write_tokenizer):
    """(workload, line about prompts) of a spec with this section."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text(json.dumps(SIZES))
    write_tokenizer(tmp_path / "base")

    def plan(section, *options, head=RUN):
        (tmp_path / "run.toml").write_text(head + section)
        found = [CliRunner().invoke(app, ["plan", str(tmp_path / "run.toml"), *more, *options]) for more in (["--json"], [])]
        assert [one.exception for one in found] == [None, None], found
        told = next(line.removeprefix("prompts  ") for line in found[1].stdout.splitlines() if line.startswith("prompts "))
        assert f"prompts {told}" in found[0].stderr
        return json.loads(found[0].stdout), told

    return plan


def write(path, lengths, **columns):
    path.write_text("".join(json.dumps({"prompt": "1" * length, **columns}) + "\n" for length in lengths))


def lengths_of(found):
    workload = found["workload"]
    return workload["prompt_tokens"], workload["longest_prompt_tokens"]


def test_the_mean_and_the_longest_are_those_of_the_rows(planned, tmp_path):
    write(tmp_path / "train.jsonl", [10, 20, 600])
    found, told = planned('train = "train.jsonl"')
    assert lengths_of(found) == (210, 600)
    assert told == "of 3 rows: 210 tokens in the mean, 600 the longest"
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "train.parquet")
    assert planned('train = "train.parquet"')[0] == found


def test_what_has_room_for_every_sample_is_planned_for_the_longest_prompt(planned, tmp_path):
    write(tmp_path / "even.jsonl", [210] * 3)
    write(tmp_path / "train.jsonl", [10, 20, 600])
    (even, _), (found, _) = planned('train = "even.jsonl"'), planned('train = "train.jsonl"')
    assert (even["workload"]["prompt_tokens"], found["workload"]["prompt_tokens"]) == (210, 210)
    engines = [{part["name"]: part["bytes"] for part in one["tenants"][1]["parts"]} for one in (even, found)]
    keys = "keys and values of 64 samples"
    assert engines[1][keys] > engines[0][keys]
    assert engines[1]["keys and values of the next prompts"] * 210 == engines[0]["keys and values of the next prompts"] * 600
    assert even["divisions"][0]["seconds"]["generate"] == found["divisions"][0]["seconds"]["generate"]


def test_the_first_rows_of_the_first_files_are_read_and_of_a_mixture_each_part_by_its_weight(planned, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_lengths, "_ROWS", 2)
    monkeypatch.setattr(plan_lengths, "_FILES", 2)
    (tmp_path / "many").mkdir()
    for name, lengths in {"a": [10, 10, 90], "b": [20, 20, 90], "c": [90]}.items():
        write(tmp_path / f"many/{name}.jsonl", lengths)
    write(tmp_path / "other.jsonl", [35])
    found, told = planned('mixture = [{ source = "many", weight = 3 }, { source = "other.jsonl", weight = 1 }]')
    assert lengths_of(found) == (20, 35)
    assert told.startswith("of 5 rows: ")


def test_rows_that_would_be_left_out_or_refused_are_not_counted(planned, tmp_path):
    write(tmp_path / "train.jsonl", [10, 30, 50, 0], level=1)
    found, _ = planned('train = "train.jsonl"\nfilter.max_prompt_characters = 40', "--set", "rollout.max_prompt_tokens=20")
    assert lengths_of(found) == (10, 10)


def test_given_responses_have_the_length_that_they_have(planned, tmp_path):
    write(tmp_path / "train.jsonl", [10], completion="2" * 40)
    head = RUN.replace("reward.service", 'kind = "sft"\nmodel.revision').replace('"grpc://scorer:1"', '"0"')
    head = head.replace('model.revision = "0"\n', "")
    found, _ = planned('train = "train.jsonl"', head=head)
    assert found["workload"]["response_tokens"] in {40, 41}, "with or without a stop token"
    assert planned('train = "train.jsonl"', "--response-tokens", "7", head=head)[0]["workload"]["response_tokens"] == 7


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ('train = "gone.jsonl"', "not measured (gone.jsonl is not on this machine); give their mean by --prompt-tokens"),
        ('train = "s3://bucket/key.jsonl"', "not measured (s3://bucket/key.jsonl is not on this machine)"),
        ('train = "bad.jsonl"', "not measured (of the first rows of train a submission would take none; see `gradbus data check`)"),
        ('train = "zip.jsonl"', "not measured (zip.jsonl: the file is a ZIP archive"),
    ],
)
def test_without_rows_of_this_machine_prompts_are_taken_to_have_256_tokens(planned, tmp_path, section, told):
    (tmp_path / "bad.jsonl").write_text('{"other": 1}\n{\n')
    (tmp_path / "zip.jsonl").write_bytes(b"PK\x03\x04")
    found, said = planned(section)
    assert lengths_of(found) == (256, 256)
    assert said.startswith(told)


def test_without_a_tokenizer_or_with_a_given_length_no_row_is_read(planned, tmp_path, monkeypatch):
    write(tmp_path / "train.jsonl", [10])
    (tmp_path / "base/tokenizer.json").write_text("{}")
    found, told = planned('train = "train.jsonl"')
    assert lengths_of(found) == (256, 256)
    assert told.startswith("not measured (")
    assert planned('train = "train.jsonl"', "--prompt-tokens", "99")[1] == "as --prompt-tokens says"
    (tmp_path / "base/tokenizer.json").unlink()
    assert planned('train = "train.jsonl"')[1].endswith("base has no tokenizer.json); give their mean by --prompt-tokens")
