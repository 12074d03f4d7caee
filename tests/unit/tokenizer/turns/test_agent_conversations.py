"""Conversations that an agent asks in: histories with calls, tools of their own, and nothing in them that forges a turn."""

import json

import pytest

from gradbus.errors import DatasetError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.grammar.turn_grammar import as_template_takes
from gradbus.tokenizer.turns import ChatCall, ChatMessage, ParsedCall

from .conftest import TOOLS
from .test_spoofing import controls, payloads

MUL = ChatCall("mul", '{"a": 2, "b": 3}', "c0.0")
TOOLS_JSON = json.dumps(TOOLS)


@pytest.fixture(scope="module")
def agents(families, turn_settings):
    """Gives an agent's encoder of a shape, whose tools come with each conversation."""
    made = {}

    def give(shape):
        if shape not in made:
            made[shape] = PromptEncoder(
                families(shape).folder, PromptLimits(8), turns=turn_settings(tools_json="[]", tools_by_conversation=True, is_agent=True)
            )
        return made[shape]

    return give


def history(calls):
    """A conversation with so many calls of the assistant, and their results."""
    made = tuple(ChatCall("mul", json.dumps({"a": n, "b": 3}), f"c0.{n}") for n in range(calls))
    results = [ChatMessage("tool", str(3 * n), f"c0.{n}", "mul") for n in range(calls)]
    answer = [ChatMessage("assistant", "", calls=made), *results] if calls else [ChatMessage("assistant", "I do not know.")]
    return [ChatMessage("user", "what is 7 + 12?"), *answer, *([] if calls else [ChatMessage("user", "go on")])]


def test_a_history_with_calls_is_what_the_template_writes(family, agents):
    for calls in range(family.most_calls + 1):
        messages = history(calls)
        ids = agents(family.name).encode_conversation(messages, TOOLS_JSON)
        assert ids == family.ids(family.render([as_template_takes(message) for message in messages]))
        assert ids == family.encoder.encode_conversation(messages), "as with tools that are the run's"


def test_a_conversation_may_have_no_tools_where_the_run_has_some(families, agents, turn_settings):
    encoder = PromptEncoder(families("qwen").folder, PromptLimits(8), turns=turn_settings(is_agent=True))
    assert encoder.encode_conversation(history(1), "[]") == agents("qwen").encode_conversation(history(1))
    assert encoder.encode_conversation(history(1)) == agents("qwen").encode_conversation(history(1), TOOLS_JSON)


def test_a_message_is_whole_after_a_turn_as_in_a_conversation(families, agents, turn_settings):
    qwen, said = families("qwen"), ChatMessage("user", "".join(f"{n} " for n in range(1000, 3000)))
    extension = agents("qwen").grammar.extension(qwen.end_id, [said])
    assert said.content.strip() in qwen.tokenizer.decode(extension.token_ids)
    cut = PromptEncoder(qwen.folder, PromptLimits(8), turns=turn_settings()).grammar.extension(qwen.end_id, [said])
    assert len(cut.token_ids) < 1100 < len(extension.token_ids), "an environment's is cut"


def test_a_call_is_given_with_an_object_of_arguments_or_with_their_text():
    (call,) = as_template_takes(ChatMessage("assistant", "", calls=(MUL,)))["tool_calls"]
    assert call == {"id": "c0.0", "type": "function", "function": {"name": "mul", "arguments": {"a": 2, "b": 3}}}
    for text in ("", "[1]", "{", '{"a": "\\ud800"}', "2"):
        (call,) = as_template_takes(ChatMessage("assistant", "", calls=(ChatCall("mul", text),)))["tool_calls"]
        assert call["function"]["arguments"] == text


def test_an_agents_run_has_the_parser_and_the_frames_of_one_with_tools(family, agents):
    agent = agents(family.name).grammar
    assert agent.parser == family.grammar.parser
    role = "tool" if family.most_calls else "user"
    message = [ChatMessage(role, "6", "c0.0", "mul")]
    assert agent.extension(family.end_id, message) == family.grammar.extension(family.end_id, message)


def test_calls_are_those_of_the_conversations_tools(families, agents):
    family, agent = families("qwen"), agents("qwen")
    drawn = (*family.ids('<tool_call>\n{"name": "mul", "arguments": {"a": 2}}\n</tool_call>'), family.end_id)
    assert agent.parse(drawn, stopped=True, tools_json=TOOLS_JSON).calls == (ParsedCall("mul", '{"a": 2}', "ok"),)
    assert agent.parse(drawn, stopped=True, tools_json=json.dumps(TOOLS[:1])).calls == (ParsedCall("mul", '{"a": 2}', "unknown_tool"),)
    assert agent.parse(drawn, stopped=True, tools_json="[]") == agent.parse(drawn, stopped=True)
    assert agent.parse(drawn, stopped=True).calls == ()
    assert agent.parse(drawn, stopped=False, tools_json=TOOLS_JSON).calls == ()
    assert family.encoder.parse(drawn, stopped=True, tools_json="[]").calls == ()


def test_nothing_that_an_agent_gives_forges_a_turn(family, agents):
    encoder = agents(family.name)

    def asked(text, calls):
        call = (ChatCall(f"f{text}", json.dumps({f"k{text}": [f"v{text}"]}), text),) if calls else ()
        answer = ChatMessage("assistant", "" if calls else f"a{text}", calls=call)
        follows = ChatMessage("tool", text, text, f"f{text}") if calls else ChatMessage("user", text)
        return [ChatMessage("user", "q"), answer, follows]

    tools = json.dumps([{"name": "f", "description": "f", "parameters": {}}])
    for calls in range(2 if family.most_calls else 1):
        plain = controls(family, encoder.encode_conversation(asked("x", calls), tools))
        for payload in payloads(family):
            if "think>" in payload:
                continue
            spoofed = tools.replace("f", json.dumps(payload)[1:-1])
            for given in (tools, spoofed):
                assert controls(family, encoder.encode_conversation(asked(payload, calls), given)) == plain, payload


def test_an_agent_may_give_back_the_thinking_of_the_policy(families, agents):
    """Templates look for it in what the assistant said."""
    family, agent = families("qwen3"), agents("qwen3")
    think = [family.tokenizer.convert_tokens_to_ids(name) for name in ("<think>", "</think>")]
    said = [ChatMessage("user", "q"), ChatMessage("assistant", "<think>hm</think>\n\n<|im_end|>x"), ChatMessage("tool", "6", "c0.0", "mul")]
    ids = agent.encode_conversation(said)
    assert [token for token in ids if token in think] == think
    assert ids.count(family.end_id) == agent.encode_conversation([said[0], ChatMessage("assistant", "x"), said[2]]).count(family.end_id)


@pytest.mark.parametrize("character", ["\U000f0001", "\U000f8001", "\ud800"])
def test_characters_that_stand_for_control_tokens_are_replaced(agents, character):
    def asked(one):
        call = ChatCall(one, json.dumps({one: one}, ensure_ascii=False), one)
        return [ChatMessage("user", f"<|im_end|>{one}"), ChatMessage("assistant", one, calls=(call,)), ChatMessage("tool", one, one, one)]

    def tools(one):
        return json.dumps([{"name": one, "description": one}], ensure_ascii=False)

    agent = agents("qwen")
    assert agent.encode_conversation(asked(character)) == agent.encode_conversation(asked("\ufffd"))
    if character != "\ud800":  # which is no JSON, and no text of a message on the wire
        assert agent.encode_conversation(asked("x"), tools(character)) == agent.encode_conversation(asked("x"), tools("\ufffd"))


@pytest.mark.parametrize("tools", ["{", "{}", "[1]", "[{}]", '[{"name": 1}]', '[{"name": "f", "parameters": 1}]'])
def test_tools_that_are_none_are_an_error_of_the_conversation(agents, tools):
    with pytest.raises(DatasetError, match="the tools of a conversation are no"):
        agents("qwen").encode_conversation([ChatMessage("user", "q")], tools)


def test_what_a_template_does_not_take_is_an_error_of_the_conversation(agents):
    text = ChatCall("mul", "[1]", "c0.0")
    with pytest.raises(DatasetError, match="does not render the messages of an agent's conversation"):
        agents("qwen3_coder").encode_conversation([ChatMessage("user", "q"), ChatMessage("assistant", "", calls=(text,))], TOOLS_JSON)
    with pytest.raises(DatasetError, match="one call at a time"):
        agents("llama3").encode_conversation([ChatMessage("user", "q"), ChatMessage("assistant", "", calls=(MUL, MUL))], TOOLS_JSON)
    with pytest.raises(DatasetError, match="the role 'system' follows a turn"):
        agents("qwen").extension((5,), [ChatMessage("system", "x")])


def test_an_agents_conversation_may_be_longer_than_the_context(families, turn_settings):
    encoder = PromptEncoder(families("chatml").folder, PromptLimits(8, max_prompt_tokens=4), turns=turn_settings(is_agent=True))
    assert len(encoder.encode_conversation([ChatMessage("user", "7 " * 70_000)])) > encoder.context_length
    with pytest.raises(DatasetError, match="a prompt is a text, or a list"):
        encoder.encode_conversation([])
