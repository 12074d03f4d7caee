"""Turns that end at a text of their agent's: with the tokens that an engine draws which looks at the text after each one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.tokenizer.grammar.stop_texts import stop_hit
from gradbus.tokenizer.turns import ParsedCall, ParsedTurn

CALL = '<tool_call>{"name": "mul", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture(scope="module")
def family(families):
    return families("qwen")


def one_by_one(drawn, stop, decoded):
    """What the definition says, token by token."""
    for count in range(len(drawn) + 1):
        if any(text in decoded(drawn[:count]) for text in stop):
            return count
    return None


@given(st.text("abé\n", max_size=20), st.lists(st.text("abé\n", min_size=1, max_size=3), min_size=1, max_size=3), st.booleans())
def test_a_turn_has_the_tokens_up_to_the_one_that_completes_the_text(family, said, stop, splits):
    """Also of ids that no tokenizer would choose, which divide a character."""
    ids = [token for character in said for token in family.ids(character)] if splits else list(family.ids(said))
    drawn = (*ids, family.end_id)
    turn = family.grammar.parse(drawn, stopped=True, stop=stop)
    expected = one_by_one(drawn, stop, lambda part: family.tokenizer.decode(list(part), skip_special_tokens=True))
    assert turn.kept == expected
    if expected is None:
        assert (turn.text, turn.stop_text) == (said, "")
    else:
        assert turn.stop_text in stop
        seen = family.tokenizer.decode(list(drawn[:expected]), skip_special_tokens=True)
        assert turn.text == seen[: min(seen.index(text) for text in stop if text in seen)]


def test_the_text_that_is_complete_first_counts():
    hit = stop_hit([*"xaby"], ["xaby", "b", "ab"], "".join)
    assert (hit.kept, hit.text, hit.before) == (3, "ab", "x")
    assert stop_hit([*"xy"], ["z"], "".join) is None
    assert stop_hit([], ["z"], "".join) is None


def test_a_turn_that_was_cut_off_after_it_is_stopped_and_has_its_calls(family):
    drawn = family.ids(f"I look.{CALL}\nObservation: I gu")
    turn = family.grammar.parse(drawn, stopped=False, stop=["\nObservation:"])
    assert (turn.text, turn.calls, turn.stop_text) == ("I look.", (ParsedCall("mul", '{"a": 1}', "ok"),), "\nObservation:")
    assert family.tokenizer.decode(drawn[: turn.kept]).startswith(f"I look.{CALL}\nObservation:")
    assert family.grammar.parse(drawn, stopped=False) == ParsedTurn(family.tokenizer.decode(drawn))


def test_a_call_in_which_it_stands_is_text(family):
    turn = family.grammar.parse((*family.ids(f"I look.{CALL}"), family.end_id), stopped=True, stop=['"arguments"'])
    assert turn.calls == ()
    assert turn.text.startswith("I look.")
    assert turn.text.endswith('{"name": "mul", ')
