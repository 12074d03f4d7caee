"""Calls with a tag for each parameter; values are read by the tool's schema."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.turns import ParsedCall

KINDS = {
    "text": {"type": "string"},
    "maybe": {"type": ["string", "null"]},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "truth": {"type": "boolean"},
    "list": {"type": "array"},
    "object": {"type": "object"},
    "any": {},
    "odd": "no schema",
}
TOOLS = [{"name": "all", "description": "", "parameters": {"type": "object", "properties": KINDS}}, {"name": "none", "description": ""}]


@pytest.fixture(scope="module", params=["qwen3_coder", "chatml"])
def parse(request, families, turn_settings):
    """With tags of their own ids, and without."""
    family = families(request.param)
    settings = turn_settings(parser="qwen3_coder", tools_json=json.dumps(TOOLS))
    grammar = PromptEncoder(family.folder, PromptLimits(8), turns=settings).grammar
    return lambda text: grammar.parse((*family.ids(text), family.end_id), stopped=True)


def tagged(body):
    return f"<tool_call>{body}</tool_call>"


def function(parameters, name="all"):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"\n<function={name}>\n{inner}</function>\n"


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ("text", "fox", "fox"),
        ("text", "12", "12"),
        ("text", "", ""),
        ("text", "  two\n\nlines \n", "  two\n\nlines \n"),
        ("text", "<b>x</b> & </function>", "<b>x</b> & </function>"),
        ("maybe", "null", "null"),
        ("whole", "12", 12),
        ("whole", " 12 ", 12),
        ("whole", "twelve", "twelve"),
        ("number", "1.50", 1.5),
        ("number", "NaN", "NaN"),
        ("truth", "true", True),
        ("truth", "True", True),
        ("truth", "False", False),
        ("any", "None", None),
        ("any", "fox", "fox"),
        ("any", '{"a": [1, null]}', {"a": [1, None]}),
        ("list", '[1, "b"]', [1, "b"]),
        ("list", "[1, ", "[1, "),
        ("object", '{"b": 1, "a": {}}', {"a": {}, "b": 1}),
        ("odd", "12", "12"),
        ("unknown", "12", "12"),
    ],
)
def test_a_value_is_read_by_its_schema(parse, parameter, text, value):
    call = parse(tagged(function([(parameter, text)]))).calls[0]
    assert call.status == "ok"
    assert json.loads(call.arguments_json) == {parameter: value}


def test_arguments_are_written_in_one_form(parse):
    turn = parse("I do. " + tagged(function([("whole", "2"), ("text", "é"), ("list", "[1,  2]")])))
    assert turn.text == "I do. "
    assert turn.calls == (ParsedCall("all", '{"list":[1,2],"text":"é","whole":2}', "ok"),)
    assert parse(tagged("<function=none></function>")).calls == (ParsedCall("none", "{}", "ok"),)
    assert parse(tagged(function([("a", "1")], "div"))).calls == (ParsedCall("div", '{"a":"1"}', "unknown_tool"),)
    one_line = "<function=all><parameter=text>fox</parameter><parameter=whole>1</parameter></function>"
    assert parse(tagged(one_line)).calls == (ParsedCall("all", '{"text":"fox","whole":1}', "ok"),)


GOOD = function([("text", "fox"), ("whole", "2")])
OPENED = "<function=all>\n<parameter=text>\nfox\n"
CUTS = [GOOD[:n].rstrip() for n in range(1, len(GOOD) - 2, 3)]
MALFORMED = [
    "",
    " ",
    "all",
    "all(1)",
    '{"name": "all", "arguments": {}}',
    "<function>",
    "<function=></function>",
    "<function=all>",
    "<function=all/>",
    "</function>",
    "<function=all></Function>",
    "<Function=all></Function>",
    "<function all></function>",
    "<function=a\nll></function>",
    "<function=<all>></function>",
    "x" + GOOD,
    GOOD + "x",
    GOOD + GOOD,
    GOOD + "<parameter=text>",
    f"<tool_call>{GOOD}",
    f"```{GOOD}```",
    OPENED + "</function>",
    OPENED + "</parameter>",
    OPENED + "</parameter></function",
    OPENED + "</Parameter></function>",
    OPENED + "</parameter>x</function>",
    OPENED + "</parameter></parameter></function>",
    OPENED + "</parameter>\n" + OPENED + "</parameter></function>",
    OPENED + "</parameter>\n<parameter=text>1</parameter></function>",
    "<function=all>x</function>",
    "<function=all><parameter></parameter></function>",
    "<function=all><parameter=></parameter></function>",
    "<function=all><parameter=text></function>",
    "<function=all></parameter></function>",
    "<function=all><parameter=a\nb>1</parameter></function>",
    "<function=all><parameter=<a>>1</parameter></function>",
    "<function=all><parameter=text>1</parameter>,<parameter=whole>1</parameter></function>",
    "<parameter=text>1</parameter>",
    "\0",
    *CUTS,
]


def test_the_whole_text_of_a_malformed_call_is_kept(parse):
    assert len(MALFORMED) >= 60
    for body in MALFORMED:
        turn = parse(f"a{tagged(body)}b{tagged(GOOD)}")
        assert turn.text == "ab", body
        assert turn.calls == (ParsedCall("", body, "malformed"), ParsedCall("all", '{"text":"fox","whole":2}', "ok")), body


PARTS = ["<tool_call>", "</tool_call>", "<function=all>", "</function>", "<parameter=text>", "</parameter>", "\n", "x", GOOD]


@given(st.lists(st.sampled_from(PARTS), max_size=20).map("".join))
def test_whatever_is_drawn_is_parsed(parse, text):
    turn = parse(text)
    assert len(turn.calls) <= text.count("<tool_call>")
    assert all(isinstance(json.loads(call.arguments_json), dict) for call in turn.calls if call.status == "ok")
