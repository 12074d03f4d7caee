import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.errors import GraderError
from gradbus.graders import compiled_grader, string_check, text_similarity
from gradbus.graders.text_comparison import MAX_SIMILARITY_CHARACTERS
from gradbus.spec import StringCheckGrader, TextSimilarityGrader

TEXT = st.text(alphabet="abcä😀", max_size=24)


def reference_similarity(a: str, b: str) -> float:
    """2 LCS / (|a| + |b|) by the textbook table."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for n, y in enumerate(b):
            row.append(above[n] + 1 if x == y else max(above[n + 1], row[n]))
    return 2 * row[-1] / (len(a) + len(b)) if a or b else 1.0


@pytest.mark.parametrize(
    ("operation", "text", "reference", "expected"),
    [
        ("eq", "12", "12", 1.0),
        ("eq", "12 ", "12", 0.0),
        ("ne", "12", "13", 1.0),
        ("ne", "12", "12", 0.0),
        ("like", "the Answer is 12", "Answer", 1.0),
        ("like", "the answer", "Answer", 0.0),
        ("like", "12", "the 12", 0.0),
        ("ilike", "the answer", "ANSWER", 1.0),
        ("ilike", "STRASSE", "straße", 1.0),
    ],
)
def test_string_check(operation, text, reference, expected):
    assert string_check(operation, text, reference) == expected


@given(TEXT, TEXT)
def test_similarity_equals_the_textbook_table(a, b):
    assert text_similarity(a, b) == reference_similarity(a, b)


@given(TEXT, TEXT)
def test_similarity_is_symmetric_and_one_only_for_equal_texts(a, b):
    assert text_similarity(a, b) == text_similarity(b, a)
    assert (text_similarity(a, b) == 1.0) == (a == b)


def test_similarity_refuses_texts_it_would_take_seconds_for():
    with pytest.raises(GraderError, match="compare a part"):
        text_similarity("a" * (MAX_SIMILARITY_CHARACTERS + 1), "b")


def test_a_compiled_grader_fills_its_templates():
    sample, item = {"output_text": "abd", "finish_reason": "stop"}, {"answer": "abc"}
    names = {"input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
    assert compiled_grader(StringCheckGrader(type="string_check", operation="ne", **names))(sample, item) == 1.0
    assert compiled_grader(TextSimilarityGrader(type="text_similarity", **names))(sample, item) == pytest.approx(2 / 3)
