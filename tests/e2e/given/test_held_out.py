"""The loss on held-out rows of runs on given responses, version by version."""

import pytest

WORDS = ("sun", "moon", "star", "sky", "cloud", "rain", "snow", "wind")
STEPS = 4
KINDS = {
    "sft": ("sft", {}),
    "dpo": ("dpo", {}),
    "dpo-adapters": ("dpo", {"trainer": {"lora": {"rank": 4}}}),
    "ipo": ("ipo", {}),
    "simpo": ("simpo", {}),
    "orpo": ("orpo", {}),
    "kto": ("kto", {"preference": {"undesirable_weight": 1.5}}),
    "reward-model": ("reward_model", {"preference": {"center": 0.1}}),
}


@pytest.fixture(scope="module")
def held_out(models, rows):
    """Makes a spec whose steps train all rows of a file, which are its held-out rows too."""
    given = zip(WORDS, (*WORDS[1:], "sun"), strict=True)
    file = rows(
        {"prompt": f"{word} and", "completion": f" {answer}", "chosen": f" {answer}", "rejected": f" {word} {word}", "label": at % 3 > 0}
        for at, (word, answer) in enumerate(given)
    )

    def make(kind, **changes):
        body = {
            "name": "held-out",
            "kind": kind,
            "model": {"path": str(models / "llama")},
            "data": {"train": file, "eval": file},
            "evaluation": {"every": 1},
            "schedule": {"groups_per_step": len(WORDS), "steps": STEPS},
            "trainer": {"learning_rate": 1e-2},
            "checkpoint": {"every": 3, "keep": 100},
        }
        return {name: body.get(name, {}) | fields if isinstance(fields, dict) else fields for name, fields in (body | changes).items()}

    return make


OFTEN = ("sft", "dpo-adapters", "kto")
"""The losses of the others are compared with their operators in tests/unit/algorithms/test_held_out.py as well."""


@pytest.mark.parametrize("case", [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in KINDS])
def test_the_held_out_loss_of_a_version_is_that_of_the_step_that_trains_these_rows(lab, held_out, case):
    kind, changes = KINDS[case]
    run = lab.train(held_out(kind, **changes))
    steps, evaluations = lab.events(run["id"], "metrics"), lab.events(run["id"], "evaluation")
    assert [found["version"] for found in evaluations] == list(range(STEPS + 1))
    assert {found["samples"] for found in evaluations} == {len(WORDS)}
    for step, found in zip(steps, evaluations[:-1], strict=True):
        names = found.keys() - {"version", "samples"}
        assert {"loss"} <= names <= step.keys()
        assert {name: found[name] for name in names} == {name: pytest.approx(step[name], rel=2e-5, abs=2e-6) for name in names}
    assert evaluations[-1]["loss"] != evaluations[0]["loss"]
    assert ("accuracy" in evaluations[0]) == (kind not in {"sft", "kto"})
    assert run["progress"]["held_out_loss"] == evaluations[-1]["loss"]
    assert run["progress"]["accuracy"] == evaluations[-1].get("accuracy")


def test_the_command_shows_the_held_out_loss(lab, gradbus, held_out):
    run = lab.train(held_out("simpo", evaluation={"every": 3, "samples": 5}))
    evaluations = lab.events(run["id"], "evaluation")
    assert [(found["version"], found["samples"]) for found in evaluations] == [(0, 5), (3, 5), (4, 5)]
    loss, accuracy = evaluations[-1]["loss"], evaluations[-1]["accuracy"]
    (listed,) = [line for line in gradbus("runs").stdout.splitlines() if run["id"] in line]
    assert f"  held-out loss {loss:.3f}" in listed
    lines = gradbus("events", run["id"], "--type", "evaluation").stdout.splitlines()
    assert lines[-1].endswith(f"version 4: loss {loss:.3f}, accuracy {accuracy:.3f}")
