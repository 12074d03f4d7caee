import pytest

from gradbus.graders import check, check_grader
from gradbus.spec import RewardSpec

TEXTS = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}


def faults(grader, columns=("prompt", "answer")):
    return check_grader(RewardSpec.model_validate({"grader": grader}).grader, columns)


def test_a_valid_grader_has_no_faults():
    python = {"type": "python", "source": "import re\ndef grade(sample, item):\n    return 1.0"}
    multi = {"type": "multi", "graders": {"a": TEXTS, "b": python}, "calculate_output": "0.5 * a + 0.5 * b"}
    assert faults(TEXTS) == faults(python) == faults(multi) == []


def test_an_unknown_column_is_named_with_the_nearest():
    (fault,) = faults(TEXTS | {"reference": "{{ item.anwser }}"})
    assert (fault.path, fault.given, fault.nearest) == ("reward.grader.reference", "`anwser`", "answer")


def test_a_malformed_template_is_a_fault_at_its_field():
    (fault,) = faults(TEXTS | {"input": "{{ sample.text }}"})
    assert fault.path == "reward.grader.input"
    assert "output_text" in fault.message


def test_a_formula_is_checked_with_the_graders_it_joins():
    given = {"type": "multi", "graders": {"digits": TEXTS | {"input": "{{ item.no }}"}}, "calculate_output": "digit + exact"}
    found = {fault.path: fault for fault in faults(given)}
    assert set(found) == {"reward.grader.graders.digits.input", "reward.grader.calculate_output"}
    names = [(fault.given, fault.nearest) for fault in faults(given) if fault.path.endswith("output")]
    assert names == [("`digit`", "digits"), ("`exact`", "")]


def test_a_formula_that_is_not_arithmetic_is_one_fault():
    (fault,) = faults({"type": "multi", "graders": {"a": TEXTS}, "calculate_output": "open('x')"})
    assert fault.path == "reward.grader.calculate_output"


@pytest.mark.parametrize(
    "source",
    [
        "def grade(sample, item:\n",
        "def score(sample, item):\n    return 1",
        "",
        "class A:\n    def grade(self): ...",
        "\0",
        "if a: ...\n" + "elif a: ...\n" * 900,
        "f'" + "{a}" * 43_000 + "'",
    ],
)
def test_source_that_cannot_be_a_grader_is_a_fault(source):
    (fault,) = faults({"type": "python", "source": source})
    assert fault.path == "reward.grader.source"


def test_a_source_that_takes_the_parser_too_long_is_refused(monkeypatch, tmp_path):
    endless = tmp_path / "endless.py"
    endless.write_text("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass")
    monkeypatch.setattr(check, "_SOURCE_CHECK", str(endless))
    (fault,) = faults({"type": "python", "source": "def grade(sample, item): return 0.5"})
    assert "too much for Python's parser; shorten the source" in str(fault)


def test_a_parser_that_is_killed_is_no_fault_of_the_source_and_is_run_again(monkeypatch, tmp_path):
    killed, source_check = tmp_path / "killed.py", check._SOURCE_CHECK
    killed.write_text("import os\nos.kill(os.getpid(), 9)")
    source = {"type": "python", "source": "def grade(sample, item): return 0.75"}
    monkeypatch.setattr(check, "_SOURCE_CHECK", str(killed))
    with pytest.raises(TimeoutError, match="submit it again later"):
        faults(source)
    monkeypatch.setattr(check, "_SOURCE_CHECK", source_check)
    assert faults(source) == []


def test_a_source_is_parsed_once_without_the_environment(monkeypatch, tmp_path):
    noting = tmp_path / "noting.py"
    noting.write_text(f"import os\nopen({str(tmp_path / 'noted')!r}, 'a').write(repr(sorted(os.environ)))")
    monkeypatch.setattr(check, "_SOURCE_CHECK", str(noting))
    monkeypatch.setenv("GRADBUS_SECRET", "secret")
    for _ in range(3):
        assert faults({"type": "python", "source": "def grade(sample, item): return 0.25"}) == []
    assert (tmp_path / "noted").read_text() in {"[]", "['LC_CTYPE']"}


@pytest.mark.parametrize(
    "source",
    [
        "grade = lambda sample, item: 1.0",
        "from math import floor as grade",
        "if True:\n    def grade(s, i): ...",
        "if 1: ...\nelif 2: ...\nelse: grade = 3",
    ],
)
def test_grade_may_be_bound_in_any_way(source):
    assert faults({"type": "python", "source": source}) == []


@pytest.mark.parametrize(
    ("grader", "field"),
    [
        ({"type": "math", "reference": "{{ item.no }}"}, "reference"),
        ({"type": "regex", "pattern": "a", "reference": "{{ item.no }}"}, "reference"),
        ({"type": "regex", "pattern": "(a"}, "pattern"),
        ({"type": "regex", "pattern": "(" * 2000}, "pattern"),
        ({"type": "regex", "pattern": "(?i)" + "[\0-\U0010ffff]" * 800}, "pattern"),
        ({"type": "json_schema", "json_schema": "{{ item.no }}"}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"$schema": 5}}, "json_schema"),
        ({"type": "code"}, "tests"),
        ({"type": "tags", "input": "{{ item.no }}"}, "input"),
    ],
)
def test_columns_and_patterns_of_each_grader_are_checked(grader, field):
    (fault,) = faults(grader)
    assert fault.path == f"reward.grader.{field}"
    assert faults({"type": "json_schema", "json_schema": {"properties": {"{{ no template": {}}}}) == []
