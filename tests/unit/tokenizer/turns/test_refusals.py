"""Templates that cannot go on after a turn, and what is done with those that can in another way."""

import json

import pytest

from gradbus.errors import ModelError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.turns import ChatMessage, ParsedCall

HEAD = "{% for m in messages %}"
TAIL = "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
CALLS = "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}"
TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content }}" + CALLS + "{{ '<|im_end|>\\n' }}"
NO_TOOLS = HEAD + "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" + TURN + TAIL


@pytest.fixture(scope="module")
def opened(model_folders, turn_settings):
    """Gives the encoder of a template."""

    def give(template, **changed):
        return PromptEncoder(model_folders("qwen", template=template), PromptLimits(8), turns=turn_settings(**changed))

    return give


def text_of(encoder, *messages):
    extension = encoder.grammar.extension(min(encoder.stop_token_ids), messages)
    return encoder.grammar._tokenizer.decode(extension.token_ids)


LAST_RESULT = TOOLS + HEAD + "{% if m.role == 'tool' and not loop.last %}(gone){% else %}" + TURN + "{% endif %}" + TAIL
MORE_AT_THE_END = (
    TOOLS
    + HEAD
    + "{% if m.role == 'tool' %}{{ m.content + '\\n' if not loop.last else m.content }}{{ '<|im_end|>' }}{% else %}"
    + TURN
    + "{% endif %}"
    + TAIL
)
NUMBERED = HEAD + "{{ loop.index0 }}" + TURN + TAIL
MOVED_TOOLS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + HEAD
    + "{% if loop.index0 == ns.last %}"
    + TOOLS
    + "{% endif %}"
    + TURN
    + TAIL
)
CODER = (
    "'<tool_call><function=' + call.function.name + '><parameter=x>' + call.function.arguments.x + '</parameter></function></tool_call>'"
)


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        (LAST_RESULT, r"it leaves out message 3|it writes a part in another way"),
        (
            MORE_AT_THE_END,
            r"it writes a part in another way when a conversation goes on: '.*<\|im_end\|><\|im_start\|>.*', then '.*\\n<\|im_end\|>",
        ),
        (
            NUMBERED,
            r"it writes a part in another way when a conversation goes on: '\\n2<\|im_start\|>user\\n', then '\\n4<\|im_start\|>user\\n'",
        ),
        (TOOLS + NO_TOOLS, r"the chat template refuses the messages of a probe \(no tools\)"),
        (TOOLS + HEAD + "{% if m.role != 'tool' %}" + TURN + "{% endif %}" + TAIL, "it leaves out message 3 of user, assistant, tool"),
        (TOOLS + HEAD + "{{ '<|im_start|>x' + m.content | upper + '<|im_end|>' }}" + TAIL, "it leaves out message 1"),
        (TOOLS + HEAD + TURN.replace("m.content", "m.content | replace('\"', '')") + TAIL, r"it writes ' \\n\\ta\"b"),
        (
            TOOLS + HEAD + "{% if '{' in m.content %}x{% endif %}" + TURN + TAIL,
            "it looks into what messages say: '.*', then '.*x<.im_start",
        ),
        (
            TOOLS + HEAD + TURN.replace("<|im_end|>", "") + TAIL,
            r"it ends the assistant's turn by .*, which has no stop token; set rollout.stop_token_ids",
        ),
        ("{{ nothing.at.all }}", "the chat template does not render the messages of a probe"),
    ],
)
def test_a_template_that_is_no_extension_is_refused_with_what_differs(opened, template, cause):
    with pytest.raises(ModelError, match=rf"chat_template\.jinja: the chat template cannot go on after a turn: .*({cause})"):
        opened(template)


def test_results_of_a_template_that_writes_no_tools_are_users_messages(opened):
    encoder = opened(NO_TOOLS)
    results = [ChatMessage("tool", "6", "c0", "mul"), ChatMessage("tool", "8", "c1", "mul")]
    users = [ChatMessage("user", message.content) for message in results]
    extension = encoder.grammar.extension(5, results)
    assert extension.token_ids == encoder.grammar.extension(5, users).token_ids
    assert "tool" in {author for _, _, author in extension.spans}


def test_results_that_a_template_takes_for_the_assistants_words_are_users_messages(opened):
    template = HEAD + "{% set role = 'user' if m.role == 'user' else 'assistant' %}" + TURN.replace("m.role", "role") + TAIL
    assert "<|im_start|>user\n6<|im_end|>" in text_of(opened(template), ChatMessage("tool", "6", "c0", "mul"))


def test_messages_of_users_that_have_to_take_turns_are_joined(families):
    family = families("alternating")
    joined = family.grammar.extension(family.end_id, [ChatMessage("user", "the fox\n\njumps")])
    extension = family.grammar.extension(family.end_id, [ChatMessage("user", "the fox"), ChatMessage("tool", "jumps", "c0", "mul")])
    assert extension.token_ids == joined.token_ids
    rendered = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "dog"}, {"role": "user", "content": "the fox\n\njumps"}]
    whole = family.ids(family.render(rendered))
    assert whole[whole.index(family.end_id) + 1 :] == joined.token_ids


def test_messages_that_a_template_does_not_take_are_refused_when_they_come(opened):
    alternating = HEAD + "{% if m.role == 'user' and loop.index0 > 0 and messages[loop.index0 - 1].role == 'tool' %}"
    template = TOOLS + alternating + "{{ raise_exception('no user after a result') }}{% endif %}" + TURN + TAIL
    encoder = opened(template)
    assert text_of(encoder, ChatMessage("tool", "6", "c0", "mul"))
    with pytest.raises(ModelError, match=r"takes no user after tool \(.*no user after a result.*\); give other messages"):
        encoder.grammar.extension(5, [ChatMessage("tool", "6", "c0", "mul"), ChatMessage("user", "so")])
    with pytest.raises(ModelError, match="takes no assistant after assistant"):
        encoder.grammar.extension(5, [])


def test_a_template_that_moves_the_tools_takes_results_but_no_user(opened):
    encoder = opened(MOVED_TOOLS)
    assert text_of(encoder, ChatMessage("tool", "6", "c0", "mul")).startswith("\n<|im_start|>tool\n6<|im_end|>")
    with pytest.raises(ModelError, match=r"takes no user after assistant \(it writes a part in another way when .*look_up.*', then '<"):
        encoder.grammar.extension(5, [ChatMessage("user", "so")])


@pytest.mark.parametrize(
    ("written", "parser"),
    [
        ("'<tool_call>' + call.function | tojson + '</tool_call>'", "hermes"),
        (CODER, "qwen3_coder"),
        ("{'name': call.function.name, 'parameters': call.function.arguments} | tojson", "llama3"),
    ],
)
def test_the_parser_is_the_one_that_reads_the_templates_own_call(opened, written, parser):
    calls = "{% for call in m.tool_calls or [] %}{{ " + written + " }}{% endfor %}"
    assert opened(TOOLS + HEAD + TURN.replace(CALLS, calls) + TAIL).grammar.parser == parser


def test_a_call_that_no_parser_reads_is_shown(opened):
    template = TOOLS + HEAD + TURN.replace(CALLS, "{{ (m.tool_calls or '') | string | replace('\\'', '') }}") + TAIL
    with pytest.raises(ModelError, match=r"no parser reads the call that the chat template writes, .*; set environment.tool_parser"):
        opened(template)
    assert opened(template, parser="hermes").grammar.parser == "hermes"
    assert opened(template, tools_json="[]").grammar.parser == "hermes"


@pytest.mark.parametrize(
    ("shape", "parser"),
    [
        ("chatml", "hermes"),
        ("qwen", "hermes"),
        ("qwen3", "hermes"),
        ("qwen3_coder", "qwen3_coder"),
        ("llama3", "llama3"),
        ("gpt_oss", "gpt_oss"),
        ("alternating", "hermes"),
    ],
)
def test_each_family_has_its_parser(families, shape, parser):
    assert families(shape).grammar.parser == parser


def test_the_policys_own_call_in_the_form_of_its_template_is_read(families):
    for shape in ("qwen", "qwen3", "qwen3_coder", "llama3", "gpt_oss"):
        family = families(shape)
        calls = [{"type": "function", "function": {"name": "look_up", "arguments": {"word": "fox"}}}]
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}]
        drawn = family.ids(family.render(messages, generation_prompt=False).removeprefix(family.render(messages[:1])))
        stop = max(at for at, token in enumerate(drawn) if token in family.encoder.stop_token_ids)
        (call,) = family.grammar.parse(drawn[: stop + 1], stopped=True).calls
        assert (call.name, json.loads(call.arguments_json), call.status) == ("look_up", {"word": "fox"}, "ok")


def test_plain_text_may_be_asked_for_where_there_is_a_template(opened):
    encoder = opened(HEAD + TURN + TAIL, parser="plain")
    assert text_of(encoder, ChatMessage("user", "so")) == "so"
    drawn = encoder.encode("mul(2,3)", 1)
    assert encoder.grammar.parse((*drawn, min(encoder.stop_token_ids)), stopped=True).calls == (ParsedCall("mul", '{"a":2,"b":3}', "ok"),)
