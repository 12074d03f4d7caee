"""The `[reward]` sections of examples/rewards are valid, and say what rows they want."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from gradbus.client.upload import upload_local_files
from gradbus.graders import check_grader
from gradbus.spec import parse_spec

FOLDER = Path(__file__).parents[3] / "examples/rewards/sections"
BODY = {"name": "r", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 1}}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_section_is_valid_for_its_rows(path):
    text = path.read_text()
    body, faults = upload_local_files(BODY | tomllib.loads(text), FOLDER, lambda *_: None)
    assert faults == []
    columns = re.findall(r'"(\w+)": ', text.splitlines()[0]) or ["prompt", "answer"]
    for scorer in parse_spec(body).reward.scorers.values():
        if scorer.grader is not None:
            assert check_grader(scorer.grader, columns) == []
        if scorer.reads_label:
            assert scorer.label in columns


def test_the_function_for_verl_scores():
    names = {}
    exec((FOLDER / "compute_score.py").read_text(), names)
    assert names["compute_score"]("gsm", "so\n#### 1,072", "1072") == {"score": 1.0, "answered": 1.0}
    assert names["compute_score"]("gsm", "1072", "1072") == {"score": 0.0, "answered": 0.0}
    json.dumps(names["compute_score"]("gsm", "", "1"))
