"""What is read strictly can be written again; everything else is refused with its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.strict_json import MAX_DEPTH, dotted, has_more_values, parse_json, value_faults

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
ANY_TEXT = st.text(st.characters(codec=None, categories=("L", "Cs", "Nd", "P")))


@given(VALUES)
def test_what_json_can_hold_is_read(value):
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.recursive(ANY_TEXT | st.floats() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner)))
def test_what_is_accepted_can_be_encoded_and_the_rest_is_a_value_error(value):
    data = json.dumps(value).encode()
    if list(value_faults(value)):
        with pytest.raises(ValueError, match=r"half of a surrogate|range of 64-bit|not a number of JSON"):
            parse_json(data)
    else:
        assert json.dumps(parse_json(data), ensure_ascii=False, allow_nan=False).encode()


def count(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(count, inner))


@given(VALUES, st.integers(0, 20))
def test_values_are_counted_up_to_a_limit(value, most):
    assert has_more_values(value, most) == (count(value) > most)


@given(st.binary(max_size=64))
def test_bytes_are_read_or_refused(data):
    try:
        json.dumps(parse_json(data), ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": {"b": ["x", "\\ud800"]}}', r"a\.b\.1 has half of a surrogate pair"),
        (b'{"\\udfff": 1}', "a name with half of a surrogate pair"),
        (b'"\xed\xa0\x80"', "utf-8"),
        (b"\xff", "utf-8"),
        (b"[1e999]", "beyond the range"),
        (b"[-1e999]", "beyond the range"),
        (b"1" * 5000, "beyond the range"),
        (b"NaN", "not a number of JSON"),
        (b"-Infinity", "not a number of JSON"),
        (b"[" * 100_000, "inside each other"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "inside each other"),
        (b"", "Expecting value"),
    ],
)
def test_what_no_service_could_store_is_refused_with_its_place(data, words):
    with pytest.raises(ValueError, match=words):
        parse_json(data)


def test_a_whole_surrogate_pair_a_byte_order_mark_and_nul_are_text():
    assert parse_json('\ufeff"\\ud83d\\ude00\\u0000"'.encode()) == "😀\0"


def test_the_number_of_values_is_bounded_before_they_are_made():
    assert parse_json(b"[1,2,3]", 3) == [1, 2, 3]
    with pytest.raises(ValueError, match="more than 3 values"):
        parse_json(b"[[],[],[]]", 3)


def test_values_of_other_origin_are_checked_too():
    value = {"whole": 1 << 5000, "float": float("inf"), "text": ["fine", "\udc00"]}
    assert [(dotted(path), fault.split()[0]) for path, fault in value_faults(value)] == [("whole", "a"), ("float", "a"), ("text.1", "half")]


def test_a_path_is_short_and_can_be_encoded():
    assert dotted(("spalte", "ü", "\ud800", 3)) == "spalte.ü.\\ud800.3"
    assert len(dotted(("x" * 10_000,))) < 200
