import pytest

from gradbus.graders import compiled_grader
from gradbus.graders.shaping import script, tags
from gradbus.spec import LengthGrader, ScriptGrader, TagsGrader

ITEM = {}


def graded(grader, text):
    return compiled_grader(grader)({"output_text": text, "finish_reason": "stop"}, ITEM)


@pytest.mark.parametrize(("size", "reward"), [(0, 0.0), (1, 0.0), (2, 1.0), (4, 1.0), (5, 0.75), (7, 0.25), (8, 0.0), (900, 0.0)])
def test_a_length_is_full_between_its_bounds_and_falls_by_a_line(size, reward):
    assert graded(LengthGrader(type="length", least=2, full=4, zero=8), "x" * size) == reward


def test_the_punishment_of_dapo_is_one_less_than_the_length_grader():
    # Equation 13: 0 up to L_max - L_cache, then (L_max - L_cache - |y|) / L_cache, and -1 beyond L_max.
    longest, cache = 20, 8
    grader = LengthGrader(type="length", full=longest - cache, zero=longest)
    for size in range(30):
        expected = 0.0 if size <= longest - cache else (longest - cache - size) / cache if size <= longest else -1.0
        assert graded(grader, "x" * size) - 1.0 == pytest.approx(expected)


@pytest.mark.parametrize(("unit", "reward"), [("characters", 0.0), ("words", 1.0), ("lines", 1.0)])
def test_a_length_counts_its_unit(unit, reward):
    assert graded(LengthGrader(type="length", unit=unit, full=3, zero=6), "one two\nthree") == reward


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("<think>a</think> <answer>b</answer>", 1.0),
        ("<answer>b</answer><think>a</think>", 0.5),
        ("<think>a<answer>b</answer></think>", 0.5),
        ("<think>a</think><think>a</think><answer>b</answer>", 0.5),
        ("</think><think>", 0.0),
        ("<think>a", 0.0),
        ("", 0.0),
    ],
)
def test_a_tag_counts_once_closed_and_in_order(text, share):
    assert tags(text, ("think", "answer")) == share
    assert graded(TagsGrader(type="tags"), text) == share


@pytest.mark.parametrize(
    ("name", "text", "share"),
    [
        ("latin", "Straße, 12 x", 1.0),
        ("cyrillic", "да no", 0.5),
        ("han", "你好 ok", 0.5),
        ("hiragana", "漢字です", 0.5),
        ("latin", "12 + 30 = 42", 1.0),
        ("greek", "\ud800π", 1.0),
    ],
)
def test_the_share_of_a_script_counts_letters_alone(name, text, share):
    assert script(text, name) == share
    assert graded(ScriptGrader(type="script", script=name), text) == share


def test_hostile_megabytes_take_no_time_of_their_own():
    text = "<think>" * 500_000
    assert graded(TagsGrader(type="tags"), text) == 0.0
    assert graded(ScriptGrader(type="script"), text) == 1.0
