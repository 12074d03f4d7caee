"""Turns by way of the tokenizer's process."""

import asyncio
import json
import os
import signal

import pytest

from gradbus.errors import DatasetError, ModelError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.errors import ModelFileError
from gradbus.tokenizer.tokenizer import Deadlines, NumberedPrompt, Tokenizer
from gradbus.tokenizer.turns import ChatCall, ChatConversation, ChatMessage, DrawnTurn, TurnAnswer, TurnsSoFar

DEADLINES = Deadlines(load=60, call=60)
CALL = '<tool_call>\n{"name": "mul", "arguments": {"a": 2,"b":3}}\n</tool_call><|im_end|>'

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def runner(fork_server, families, turn_settings):
    """An event loop with a tokenizer."""
    with asyncio.Runner() as loop:
        opening = Tokenizer.open(fork_server, families("qwen").folder, PromptLimits(8), DEADLINES, turn_settings())
        tokenizer = loop.run(opening)
        yield loop.run, tokenizer
        loop.run(tokenizer.close())


def test_its_answers_are_those_of_an_encoder_in_this_process(runner, families):
    run, tokenizer = runner
    family, begins = families("qwen"), [ChatConversation([ChatMessage("user", "hi" * n)]) for n in range(1, 200)]
    assert run(tokenizer.conversations(begins)) == [family.encoder.encode_conversation(one.messages) for one in begins]
    turns = [family.ids(CALL), family.ids(CALL)[:-1], (), (family.end_id,), (5, 3)] * 300
    parsed = run(tokenizer.parse([DrawnTurn(turn, "length" if n % 2 else "stop") for n, turn in enumerate(turns)]))
    assert parsed == [family.grammar.parse(turn, stopped=n % 2 == 0) for n, turn in enumerate(turns)]
    answers = [TurnAnswer(turn, [ChatMessage("tool", "6" * n, f"c{n}", "mul")] * (n % 3 + 1)) for n, turn in enumerate(turns[:300])]
    assert run(tokenizer.extend(answers)) == [
        family.grammar.extension(answer.drawn[-1] if answer.drawn else None, answer.messages) for answer in answers
    ]
    assert run(tokenizer.conversations([])) == run(tokenizer.parse([])) == run(tokenizer.extend([])) == []


async def test_an_agents_conversations_bring_their_tools(fork_server, families, turn_settings):
    family, tools = families("qwen"), turn_settings().tools_json
    tokenizer = await Tokenizer.open(
        fork_server, family.folder, PromptLimits(8), DEADLINES, turn_settings(tools_json="[]", tools_by_conversation=True, is_agent=True)
    )
    called = ChatMessage("assistant", "", calls=(ChatCall("mul", '{"a": 2}', "c0.0"),))
    messages = [ChatMessage("user", "q"), called, ChatMessage("tool", "6", "c0.0", "mul")]
    (with_tools, without) = await tokenizer.conversations([ChatConversation(messages, tools), ChatConversation(messages)])
    assert with_tools == family.encoder.encode_conversation(messages)
    assert len(without) < len(with_tools)
    drawn = [DrawnTurn(family.ids(CALL), "stop", given) for given in (tools, "", json.dumps([{"name": "f"}]))]
    parsed = await tokenizer.parse(drawn)
    assert [[call.status for call in turn.calls] for turn in parsed] == [["ok"], [], ["unknown_tool"]]
    assert await tokenizer.parse(drawn * 200) == parsed * 200, "in more than one call"
    await tokenizer.close()


def test_a_process_that_replaces_a_lost_one_has_the_same_grammar(runner, families):
    run, tokenizer = runner
    answer = [TurnAnswer((5,), [ChatMessage("user", "go on")])]
    expected = run(tokenizer.extend(answer))
    os.kill(tokenizer._process._pid, signal.SIGKILL)
    assert run(tokenizer.extend(answer)) == expected


def test_an_error_is_that_of_the_environments_messages(runner):
    run, tokenizer = runner
    with pytest.raises(DatasetError, match="the prompt of an environment's conversation is no Unicode text"):
        run(tokenizer.conversations([ChatConversation([ChatMessage("user", "\ud800")])]))
    long = [ChatMessage("user", "x" * (4 << 20))]
    for asked in (tokenizer.conversations([ChatConversation(long)]), tokenizer.extend([TurnAnswer((5,), long)])):
        with pytest.raises(DatasetError, match=rf"the messages have 41943\d\d bytes, at most {4 << 20} are encoded"):
            run(asked)
    with pytest.raises(ModelError, match="a message of the role 'system' follows a turn"):
        run(tokenizer.extend([TurnAnswer((5,), [ChatMessage("system", "x")])]))


async def test_thinking_leaves_the_context_as_in_this_process(fork_server, families, turn_settings):
    family = families("qwen3")
    encoder = PromptEncoder(family.folder, PromptLimits(8), turns=turn_settings(thinking="template"))
    tokenizer = await Tokenizer.open(fork_server, family.folder, PromptLimits(8), DEADLINES, turn_settings(thinking="template"))
    drawn = family.ids("<think>\nhm\n</think>\n\nfox<|im_end|>")
    follows = [[ChatMessage("user", "and?")], [ChatMessage("tool", "6", "c0", "mul")]]
    extensions = await tokenizer.extend([TurnAnswer(drawn, messages) for messages in follows])
    assert [one.ends_thinking for one in extensions] == [True, False]
    so_far = [TurnsSoFar((*range(5, 5 + n), *drawn), ((n, n + len(drawn)),)) for n in range(100)]
    found = await tokenizer.without_thinking(so_far)
    assert found == [encoder.without_thinking(one) for one in so_far]
    assert found == [(*range(5, 5 + n), *family.ids("fox<|im_end|>")) for n in range(100)]
    assert await tokenizer.without_thinking([]) == []
    await tokenizer.check_thinking("template")
    with pytest.raises(ModelFileError, match="it removes the thinking of turns before messages of user") as failed:
        await tokenizer.check_thinking(None)
    assert failed.value.file == "chat_template.jinja"
    await tokenizer.close()


async def test_a_decoder_that_makes_too_much_of_a_turn_is_refused(fork_server, model_folders, turn_settings):
    folder = model_folders("qwen", template=TEMPLATE)
    path = folder / "tokenizer.json"
    decoder = {"type": "Replace", "pattern": {"String": "q"}, "content": "x" * 5000}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": decoder}))
    tokenizer = await Tokenizer.open(fork_server, folder, PromptLimits(8), DEADLINES, turn_settings())
    with pytest.raises(ModelError, match="1 tokens decode to 5000 characters"):
        await tokenizer.parse([DrawnTurn(ids, "stop") for ids in await tokenizer.encode([NumberedPrompt(1, "q")])])
    await tokenizer.close()


async def test_a_template_that_cannot_go_on_is_refused_when_it_is_loaded(fork_server, model_folders, turn_settings):
    folder = model_folders("qwen", template="{% for m in messages %}{{ loop.index }}" + TEMPLATE.partition("%}")[2])
    with pytest.raises(ModelFileError, match="cannot go on after a turn: it writes a part in another way") as failed:
        await Tokenizer.open(fork_server, folder, PromptLimits(8), DEADLINES, turn_settings())
    assert failed.value.file == "chat_template.jinja"


async def test_without_turns_there_is_no_grammar(fork_server, families):
    tokenizer = await Tokenizer.open(fork_server, families("qwen").folder, PromptLimits(8), DEADLINES)
    with pytest.raises(ModelError, match="loaded without turns"):
        await tokenizer.parse([DrawnTurn((5,), "stop")])
    await tokenizer.close()
