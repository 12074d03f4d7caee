"""The lines of `gradbus lineage`."""

from gradbus.cli.history.lineage import tree


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
    assert list(tree(found, "succeeded")) == [
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
    assert list(tree(found, "queued")) == ["owner/name@0", "└─ run-1  first  queued  *"]
