"""Built-in graders in confined processes: what they grade, and that no hostile text costs more than its own sample."""

import pytest

from gradbus.v1 import reward_pb2
from gradbus_reward.built_in.texts import last_fenced
from gradbus_reward.graders.confined import ATTEMPTS

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR
MATH = {"type": "math", "reference": "{{ item.answer }}"}
OBJECT = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (
            "12",
            ("The answer is 12.", r"so $x = 12$", r"\boxed{12}", "#### 12", "12.0", "24/2", "13 <answer>12</answer>"),
            ("13", "", "no idea", "12 <answer>13"),
        ),
        (r"\frac{1}{2}", (r"\boxed{\frac{2}{4}}", "0.5", "1/2"), ("2", r"\boxed{\frac{1}{3}}")),
        ("9*8 = <<9*8=72>>72 clips\n#### 72", ("9 * 8 is 72", r"\boxed{72}"), (r"\boxed{8}", "9")),
        (r"$x^2 - 1$", (r"\boxed{(x-1)(x+1)}",), (r"\boxed{x^2}",)),
        (r"\{1, 2\}", (r"$\{2, 1\}$",), (r"$\{1, 3\}$",)),
    ],
)
async def test_mathematics_compares_meaning_and_not_text(grader_scorer, ask, answer, right, wrong):
    results = await grader_scorer(MATH).score(ask(*right, *wrong, answer=answer), 60.0)
    assert [result.status for result in results] == [OK] * len(results)
    assert [result.reward for result in results] == [1.0] * len(right) + [0.0] * len(wrong)


async def test_a_reference_that_is_no_answer_is_the_rows_fault(grader_scorer, ask):
    (result,) = await grader_scorer(MATH).score(ask("12", answer=""), 60.0)
    assert result.status == INVALID
    assert "is no answer; write" in result.reason


@pytest.mark.parametrize(
    ("pattern", "more", "expected"),
    [
        (r"\d+", {}, [1.0, 1.0, 0.0]),
        (r"\d+", {"match": "full"}, [1.0, 0.0, 0.0]),
        (r"#### (\d+)", {"reference": "{{ item.answer }}"}, [0.0, 1.0, 0.0]),
        (r"\d+", {"reference": " {{ item.answer }}"}, [1.0, 1.0, 0.0]),
        (r"(x)|\d+", {"reference": ""}, [1.0, 1.0, 0.0]),
    ],
)
async def test_a_pattern_matches_or_gives_the_reference(grader_scorer, ask, pattern, more, expected):
    grader = {"type": "regex", "pattern": pattern, **more}
    results = await grader_scorer(grader).score(ask("12", "#### 13 #### 12", "none"), 60.0)
    assert [(result.status, result.reward) for result in results] == [(OK, reward) for reward in expected]


async def test_json_keeps_to_a_schema_of_the_spec_or_of_the_row(grader_scorer, ask):
    texts = ['{"a": 1}', '{"a": "1"}', "{}", "no JSON", '```json\n{"a": 1}\n```', '{"a": NaN}']
    for schema, row in ((OBJECT, {}), ("{{ item.schema }}", {"schema": OBJECT})):
        results = await grader_scorer({"type": "json_schema", "json_schema": schema}).score(ask(*texts, **row), 60.0)
        assert [(result.status, result.reward) for result in results] == [(OK, 1.0)] + [(OK, 0.0)] * 5
    fenced = grader_scorer({"type": "json_schema", "json_schema": OBJECT, "fenced": True})
    assert [result.reward for result in await fenced.score(ask(*texts), 60.0)] == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]


async def test_a_schema_that_is_none_is_a_fault_of_the_spec_or_of_the_row(grader_scorer, ask):
    for schema in ({"type": 1}, {"$schema": 5}, {"$schema": ["a"]}):
        (own,) = await grader_scorer({"type": "json_schema", "json_schema": schema}).score(ask("{}"), 60.0)
        assert (own.status, own.permanent) == (ERROR, True)
        assert "not a JSON Schema" in own.reason
    foreign = grader_scorer({"type": "json_schema", "json_schema": "{{ item.schema }}"})
    (rows,) = await foreign.score(ask("{}", schema="no"), 60.0)
    (remote,) = await foreign.score(ask("{}", schema={"$ref": "http://127.0.0.1:9/s.json"}), 60.0)
    (odd,) = await foreign.score(ask("{}", schema={"$schema": 5}), 60.0)
    assert [rows.status, remote.status, odd.status] == [INVALID] * 3
    assert "not a JSON Schema" in odd.reason
    assert "refers to what it does not hold" in remote.reason


DEEP = "[" * 100_000
HOSTILE = {
    "a pattern that goes back exponentially": ({"type": "regex", "pattern": "(a+)+$"}, "a" * 40 + "b"),
    "a power of powers": (MATH, "$9^{9^{9^{9}}}$"),
    "brackets without end": (MATH, "$" + "(" * 5000 + "1" + ")" * 5000 + "$"),
    "JSON that is deep": ({"type": "json_schema", "json_schema": OBJECT}, DEEP),
    "a pattern in a schema": ({"type": "json_schema", "json_schema": {"pattern": "(a+)+$"}}, f'"{"a" * 40}b"'),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_text_costs_its_own_sample_alone(grader_scorer, ask, kind):
    grader, text = HOSTILE[kind]
    good = {"regex": "aa", "math": "12", "json_schema": '{"a": 1}'}[grader["type"]]
    scorer = grader_scorer(grader)
    for _ in range(ATTEMPTS):  # on a busy machine the clock may end the process before the processor's time is up
        before, hostile, after = await scorer.score(ask(good, text, good), 40.0)
        assert [(before.status, before.reward), (after.status, after.reward)] == [(OK, 1.0)] * 2
        if hostile.status != ERROR:
            break
    assert (hostile.status, bool(hostile.reason)) in {(INVALID, True), (OK, False)}
    assert hostile.reward == 0.0


async def test_a_part_whose_library_is_missing_says_what_to_install(grader_scorer, ask, monkeypatch):
    monkeypatch.setattr("sys.path", [folder for folder in __import__("sys").path if "site-packages" not in folder])
    (result,) = await grader_scorer(MATH).score(ask("12"), 60.0)
    assert (result.status, result.permanent) == (ERROR, True)
    assert "pip install 'gradbus[graders]'" in result.reason


async def test_parts_of_all_kinds_are_joined(grader_scorer, ask):
    parts = {
        "right": MATH,
        "form": {"type": "tags", "tags": ["answer"]},
        "number": {"type": "regex", "pattern": r"\d"},
        "own": {"type": "python", "source": "def grade(sample, item):\n    return {'reward': 0.5, 'n': 3}"},
    }
    grader = {"type": "multi", "graders": parts, "calculate_output": "right + form + number + own"}
    (result,) = await grader_scorer(grader).score(ask("<answer>12</answer>"), 60.0)
    assert (result.status, result.reward) == (OK, 3.5)
    assert dict(result.components) == {"right": 1.0, "form": 1.0, "number": 1.0, "own": 0.5, "own.n": 3.0}


async def test_a_template_without_its_column_names_it_and_spoils_no_other_row(grader_scorer, ask):
    request = ask("12", "12")
    request.samples[0].item_json = "{}"
    first, second = await grader_scorer(MATH).score(request, 60.0)
    assert (first.status, first.permanent, second.status) == (ERROR, True, OK)
    assert "{{ item.answer }}" in first.reason


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("none", None),
        ("```\nopen", None),
        ("```json\n1\n```", "1"),
        ("a\n```\n1\n```\nb\n```python\n2\n3\n```", "2\n3"),
        ("```\n1\n```\n```\ncut", "1"),
    ],
)
def test_the_last_closed_block_is_taken(text, block):
    assert last_fenced(text) == block
