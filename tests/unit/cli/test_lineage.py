"""The lines of `gradbus lineage`."""

import pytest
from typer.testing import CliRunner

from gradbus.cli.__main__ import app
from gradbus.cli.history.lineage import tree, version_lines
from gradbus.errors import SettingsError
from gradbus.resources.lineage import LineageResource
from gradbus.resources.version_lineage import VersionLineageResource


def related(name, version, state="succeeded", role="model"):
    return {"id": f"run-{name}", "name": name, "state": state, "role": role, "version": version, "digest": "sha256:0"}


def test_a_run_stands_between_its_ancestors_and_its_children():
    found = {
        "run_id": "run-ppo",
        "name": "ppo",
        "base": "models/base",
        "ancestors": [related("sft", 40, "deleted"), related("grpo", 7)],
        "reward_model": [related("older", 1, role="reward_model"), related("judge", 9, role="reward_model")],
        "teacher": [related("large", 5, role="teacher")],
        "children": [related("more", 3, "running"), related("other", 2, role="reward_model"), related("small", 4, role="teacher")],
    }
    assert list(tree(LineageResource.model_validate(found | {"has_more": False}), "succeeded")) == [
        "models/base",
        "└─ run-sft  sft  deleted",
        "   └─ run-grpo  grpo  succeeded  from version 40",
        "      └─ run-ppo  ppo  succeeded  from version 7  *",
        "         scored by version 9 of run-judge  judge  succeeded",
        "         taught by version 5 of run-large  large  succeeded",
        "         └─ run-more  more  running  from version 3",
        "         └─ run-other  other  succeeded  scored by version 2",
        "         └─ run-small  small  succeeded  taught by version 4",
    ]


def test_a_run_without_relations_stands_below_its_model():
    found = {"run_id": "run-1", "name": "first", "base": "owner/name@0", "ancestors": [], "reward_model": [], "teacher": [], "children": []}
    assert list(tree(LineageResource.model_validate(found | {"has_more": False}), "queued")) == [
        "owner/name@0",
        "└─ run-1  first  queued  *",
    ]


GROUP = {
    "index": 7,
    "step": 3,
    "row_index": 5,
    "prompt": "x" * 70,
    "verdict": "train",
    "reason": "",
    "samples": 4,
    "reward": 0.25,
    "sampled_by": [2, 3],
    "digest": "0" * 64,
}


SCORER = {"section": "reward", "kind": "grader", "name": "regex", "version": "sha256:a", "from_group": 0}


def test_a_version_has_a_line_for_what_judged_it_and_for_each_group():
    found = {
        "run_id": "run-1",
        "name": "first",
        "version": 4,
        "digest": "sha256:4",
        "base": "models/base",
        "parent": {"run": "run-0", "name": "sft", "version": 40, "digest": f"sha256:{'0' * 64}"},
        "scorers": [SCORER, SCORER | {"section": "reward.changes.0", "from_group": 8}],
        "has_more": False,
        "next_after": None,
        "groups": [GROUP, GROUP | {"verdict": "filtered", "reason": "equal", "reward": None, "sampled_by": []}],
    }
    assert list(version_lines(VersionLineageResource.model_validate(found))) == [
        "version 4 of run-1  first  sha256:4",
        "from     models/base, by version 40 of run-0 (sft)",
        "scorer   reward: grader regex  sha256:a",
        "scorer   reward.changes.0: grader regex from group 8 on  sha256:a",
        f"step 3  group 7  row 5  train  4 samples by 2, 3  reward 0.250  '{'x' * 60}…'",
        f"step 3  group 7  row 5  filtered (equal)  4 samples given  '{'x' * 60}…'",
    ]
    plain = found | {"digest": None, "parent": None, "scorers": [], "groups": []}
    assert list(version_lines(VersionLineageResource.model_validate(plain))) == [
        "version 4 of run-1  first  not published",
        "from     models/base",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run@x"], "'x' is no version of run; give its step, as in run@40, or run@last"),
        (["run@²"], "'²' is no version of run"),
        (["run", "--step", "3"], "as in run@4, which step 3 makes"),
    ],
)
def test_what_names_no_version_is_refused_before_anybody_is_asked(arguments, told):
    result = CliRunner().invoke(app, ["lineage", *arguments])
    assert isinstance(result.exception, SettingsError)
    assert told in str(result.exception)
