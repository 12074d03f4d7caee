"""Spec files and `--set`."""

import pytest

from gradbus.client import load_spec
from gradbus.errors import SpecError


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run.toml").write_text('name = "a"\n[schedule]\nsteps = 3\n')
    return tmp_path / "run.toml"


def test_a_file_without_changes_is_what_it_says(path):
    assert load_spec(path) == {"name": "a", "schedule": {"steps": 3}}


def test_a_byte_order_mark_as_some_editors_write_it_is_no_fault(path):
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_spec(path)["name"] == "a"


@pytest.mark.parametrize(
    ("change", "section", "field", "value"),
    [
        ("schedule.steps=5", "schedule", "steps", 5),
        ("trainer.learning_rate=1e-3", "trainer", "learning_rate", 1e-3),
        ("algorithm.normalize_std=false", "algorithm", "normalize_std", False),
        ("algorithm.clip=[0.1, 0.3]", "algorithm", "clip", [0.1, 0.3]),
        ("model.path=../my model=1", "model", "path", "../my model=1"),
        ('model.path="quoted"', "model", "path", "quoted"),
    ],
)
def test_a_change_takes_its_place_with_its_type(path, change, section, field, value):
    assert load_spec(path, [change])[section][field] == value


def test_a_top_level_field_and_a_deep_one_can_be_set(path):
    spec = load_spec(path, ["seed=7", "reward.grader.type=python"])
    assert (spec["seed"], spec["reward"]) == (7, {"grader": {"type": "python"}})


@pytest.mark.parametrize("change", ["steps", "=3", "a..b=3", "name.first=1", ".x=1"])
def test_what_does_not_read_as_a_change_is_refused(path, change):
    with pytest.raises(SpecError, match=r"section\.field=value"):
        load_spec(path, [change])


def test_a_file_that_is_absent_or_no_toml_is_named(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(SpecError, match="not TOML"):
        load_spec(tmp_path / "bad.toml")
