"""The ids of turn k + 1 begin with all ids of turn k, and what is added equals what the template writes of canonical text."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus.tokenizer.turns import ChatMessage

PIECES = ["the fox", " jumps", "\n", "\n\n", "}", '"', ".", " ", "7 + 12?", "é", "🙂", "\\n", "{}", "x\t", "</b>", ")"]
contents = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def call(number, word):
    function = {"name": "look_up", "arguments": {"word": word}}
    return {"type": "function", "id": f"c{number}", "function": function}


def as_template(message):
    return {"role": message.role, "content": message.content} | (
        {"name": message.name, "tool_call_id": message.call_id} if message.role == "tool" else {}
    )


@st.composite
def episodes(draw, most_calls):
    """(assistant's message, what follows it), of each turn; after a turn with calls come their results, and perhaps a user's message."""
    turns = []
    for _ in range(draw(st.integers(1, 5))):
        calls = [call(n, draw(st.sampled_from(["fox", "dog\n", 'a"b']))) for n in range(draw(st.integers(0, most_calls)))]
        said = {"role": "assistant", "content": "" if calls and most_calls == 1 else draw(st.sampled_from(["the fox", "dog.", "7"]))}
        results = [ChatMessage("tool", draw(contents), f"c{n}", "look_up") for n in range(len(calls))]
        users = [ChatMessage("user", draw(contents))] if not calls or draw(st.booleans()) else []
        turns.append((said | ({"tool_calls": calls} if calls else {}), [*results, *users]))
    return turns


def check_full_render(family, data):
    messages = [{"role": "user", "content": "begin"}]
    for said, follows in data.draw(episodes(family.most_calls)):
        prompt = family.render(messages)
        messages = [*messages, said, *map(as_template, follows)]
        whole = family.render(messages)
        rest = whole.removeprefix(prompt)
        drawn = rest[: min(rest.find(end) + len(end) for end in family.ends if end in rest)]
        assert family.ids(prompt + drawn) + family.grammar.extension(family.end_id, follows).token_ids == family.ids(whole)


@settings(max_examples=30)
@given(st.data())
def test_on_canonical_text_it_is_the_full_render(family, data):
    check_full_render(family, data)


def play(family, draw, turns):
    """An episode of random ids; the ids of all its turns begin each other."""
    stops = family.encoder.stop_token_ids
    special = [family.tokenizer.convert_tokens_to_ids(name) for name in family.added]
    context = family.encoder.encode_conversation([ChatMessage("user", "begin")])
    for turn in range(turns):
        drawn = tuple(draw.choice([draw.randrange(len(family.tokenizer)), *special]) for _ in range(draw.randint(0, 12)))
        drawn += (family.end_id,) * draw.randint(0, 1)
        ended = bool(drawn) and drawn[-1] in stops
        parsed = family.grammar.parse(drawn, stopped=ended)
        results = [ChatMessage("tool", "r" * n, f"c{turn}.{n}", "mul") for n in range(draw.randint(0, 8))]
        follows = [*results, ChatMessage("user", parsed.text[:40])]
        extension = family.grammar.extension(drawn[-1] if drawn else None, follows)
        before, context = context, context + drawn + extension.token_ids
        assert context[: len(before) + len(drawn)] == before + drawn
        assert [author for _, _, author in extension.spans if author == "close"] == ([] if ended else ["close"])
        assert sum(end - start for start, end, _ in extension.spans) == len(extension.token_ids)
        same = family.grammar.extension(drawn[-1] if drawn else None, follows)
        assert same == extension


def test_whatever_was_drawn_stays_as_it_was(family):
    draw = random.Random(1)
    for turns in (1, 2, 5, 10, 50):
        play(family, draw, turns)


@pytest.mark.slow
def test_whatever_was_drawn_stays_as_it_was_in_two_thousand_episodes(family):
    draw = random.Random(2)
    for _ in range(2000):
        play(family, draw, min(50, int(draw.expovariate(0.1)) + 1))


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.data())
def test_on_canonical_text_it_is_the_full_render_in_two_thousand_episodes(family, data):
    check_full_render(family, data)


def test_the_spans_cover_the_extension_and_name_who_wrote_it(family):
    follows = [ChatMessage("tool", "the fox", "c0", "look_up"), ChatMessage("tool", "", "c1", "mul"), ChatMessage("user", "what is 7?")]
    for last, first in ((family.end_id, "frame"), (5, "close"), (None, "close")):
        extension = family.grammar.extension(last, follows)
        starts, ends, authors = zip(*extension.spans, strict=True)
        assert starts == (0, *ends[:-1])
        assert ends[-1] == len(extension.token_ids)
        assert authors[0] == first
        assert authors[-1] == "frame"
        said = [(author, family.tokenizer.decode(extension.token_ids[start:end]).strip()) for start, end, author in extension.spans]
        assert ("tool", "the fox") in said
        assert ("user", "what is 7?") in said
        assert [text for author, text in said if author == "close"] == ([family.ends[0]] if first == "close" else [])


def test_a_turn_that_was_cut_off_is_closed_and_the_rest_is_the_same(family):
    follows = [ChatMessage("user", "go on")]
    closed, after = family.grammar.extension(5, follows), family.grammar.extension(family.end_id, follows)
    assert closed.token_ids == (family.tokenizer.convert_tokens_to_ids(family.ends[0]), *after.token_ids)


@pytest.mark.parametrize("many", [1, 8, 40])
def test_the_results_of_many_calls_stand_in_their_order(family, many):
    follows = [ChatMessage("tool", f"result {n} of it", f"c{n}", "mul") for n in range(many)]
    text = family.tokenizer.decode(family.grammar.extension(family.end_id, follows).token_ids)
    assert [text.find(f"result {n} of") for n in range(many)] == sorted(text.find(f"result {n} of") for n in range(many))
    assert text.count("result") == many


def test_tools_stand_in_the_prompt_of_a_conversation_and_of_a_dataset_row(family):
    messages = (
        [ChatMessage("user", "hi")] if family.name == "alternating" else [ChatMessage("system", "be brief"), ChatMessage("user", "hi")]
    )
    expected = family.ids(family.render([{"role": message.role, "content": message.content} for message in messages]))
    assert family.encoder.encode_conversation(messages) == expected
    assert family.encoder.encode([{"role": message.role, "content": message.content} for message in messages], 1) == expected
    assert ("Looks up a word." in family.tokenizer.decode(expected)) == (family.name not in {"chatml", "alternating"})
