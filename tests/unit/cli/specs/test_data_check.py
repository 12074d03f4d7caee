"""`gradbus data check`, on files of this machine."""

import json

import pyarrow as arrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from gradbus.cli.__main__ import app

MODEL = """
model.path = "model"
rollout.max_new_tokens = 4
[data]
"""


@pytest.fixture
def checked(tmp_path, write_tokenizer):
    """(exit status, report or text) of a spec with this section."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_tokenizer(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "max_position_embeddings": 16}
    config |= {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(json.dumps(config))

    def run(section, *options, head=MODEL):
        (tmp_path / "spec.toml").write_text(head + section)
        result = CliRunner().invoke(app, ["data", "check", str(tmp_path / "spec.toml"), *options])
        assert not result.exception or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, json.loads(result.stdout)["datasets"] if "--json" in options else result.stdout

    return run


def test_rows_are_shown_with_their_tokens_and_refused_ones_with_their_reason(checked, tmp_path):
    rows = [{"question": "2+2="}, {"question": ""}, {"question": "1" * 13}, {"question": "3=3"}, {"other": 1}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, [report] = checked('train = "train.jsonl"\ncolumns = {prompt = "question"}', "--json")
    assert status == 1
    assert (report["rows"], report["refused"], report["columns"], report["tokens"]) == (2, 3, ["prompt"], [3, 3.5, 4])
    assert [(row["where"], row["prompt_tokens"], row["text"].replace(" ", "")) for row in report["shown"]] == [
        ("line 1", 4, "2+2="),
        ("line 4", 3, "3=3"),
    ]
    empty, long, missing = report["faults"]
    assert empty.startswith("line 2 has an empty prompt")
    assert "line 3 has 13 tokens, at most 12 fit" in long
    assert "line 5 has no column 'question'" in missing


def test_each_line_that_is_no_row_is_named(checked, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"prompt": "1"}\n{"prompt": \n[1]\n\n{"prompt": NaN}\n{"prompt": "2"}\n')
    _, [report] = checked('train = "train.jsonl"', "--json")
    assert (report["rows"], report["refused"]) == (2, 3)
    causes = [fault.partition(";")[0].partition(" (")[0] for fault in report["faults"]]
    assert causes == ["line 2 is not JSON", "line 3 is a list", "line 5 is not JSON"]


@pytest.mark.parametrize(
    ("section", "words"),
    [('train = "train.jsonl"', "has no rows"), ('train = "one.jsonl"\nfilter.min_prompt_characters = 9', "leaves out all 1 rows")],
)
def test_a_dataset_of_which_nothing_is_left_says_why(checked, tmp_path, section, words):
    (tmp_path / "train.jsonl").write_text("\n")
    (tmp_path / "one.jsonl").write_text('{"prompt": "1"}\n')
    status, text = checked(section)
    assert (status, words in text) == (1, True), text


def test_all_of_a_mixture_is_read_in_its_formats(checked, tmp_path):
    parquet.write_table(arrow.Table.from_pylist([{"prompt": "1", "n": number} for number in range(30)]), tmp_path / "a.parquet")
    (tmp_path / "more").mkdir()
    for name in ("x", "y"):
        (tmp_path / "more" / f"{name}.jsonl").write_text('{"q": "2", "n": 1}\n')
    section = """
filter.ranges.n = [0, 9]
mixture = [{source = "a.parquet", weight = 3}, {source = "more", columns = {prompt = "q"}}]
eval = "a.parquet"
"""
    status, text = checked(section)
    assert status == 0
    assert "mixture.0: 1 file, weight 3\n  rows       10 taken, 20 left out by the filter, 0 refused" in text
    assert "mixture.1: 2 files, weight 1\n  rows       2 taken" in text
    assert text.count("row 10  1 tokens\n    1\n") == 2, "ten rows of the first part and of the held-out rows"
    assert "line 1 of y.jsonl  1 tokens" in text


def test_without_a_model_of_this_machine_the_rows_are_checked_alone(checked, tmp_path):
    pairs = [{"prompt": "a", "chosen": "b", "rejected": answer} for answer in "bc"]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    status, [report] = checked('[data]\ntrain = "pairs.jsonl"', "--json", head='kind = "dpo"\nmodel = {run = "other"}\n')
    assert (status, report["rows"], report["refused"], report["tokens"]) == (1, 1, 1, None)


def test_a_row_that_is_too_long_as_it_is_stored_is_refused_as_in_a_submission(checked, tmp_path):
    rows = [{"prompt": "2+2=", "note": "x" * length} for length in (1, 1 << 20)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"prompt":"2+2=","note":"%s"}' % ("x" * ((1 << 20) - 28)))
    status, parts = checked('train = "a.parquet"\neval = "b.jsonl"', "--json")
    words = "has more than 1048576 bytes as JSON; shorten or split the row"
    assert (status, [(part["rows"], part["faults"]) for part in parts]) == (1, [(1, [f"row 2 {words}"]), (0, [f"line 1 {words}"])])


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('train = "nowhere.jsonl"', "train: nowhere.jsonl is not on this machine"),
        ("mixture = []", "data.train: required field is missing"),
        ('mixture = [{source = "a", weight = 0}]', "data.mixture.0.weight"),
        ('trian = "a"', "did you mean `train`"),
        ('train = "a"\nfilter.ranges.n = [2, 1]', "no number lies in it"),
    ],
)
def test_a_section_that_cannot_be_is_a_fault(tmp_path, section, words, capsys):
    from gradbus.errors import GradbusError

    (tmp_path / "spec.toml").write_text(f'model.path = "m"\n[data]\n{section}')
    result = CliRunner().invoke(app, ["data", "check", str(tmp_path / "spec.toml")])
    assert isinstance(result.exception, GradbusError)
    assert words in str(result.exception)
