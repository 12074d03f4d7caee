"""Thinking in turns that are over: it stays, or leaves as the chat template has it; what is left are the ids that were drawn."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.errors import ModelError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.grammar.turn_grammar import as_template_takes
from gradbus.tokenizer.turns import ChatCall, ChatMessage, TurnsSoFar

from .conftest import QWEN3, QWEN_CALLS, QWEN_HEAD, QWEN_RESULT, TOOLS

GENERATION = "{{ '<|im_start|>assistant\\n' }}{%- endif %}"
LAST_USER = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
)


def qwen_like(assistant, generation=GENERATION, start="<|im_start|>assistant\\n"):
    """A template in Qwen's form, whose assistant's turns begin as `assistant` says; it may read `ns.last`, and set `said`."""
    return (
        QWEN_HEAD
        + LAST_USER
        + "{%- for m in messages %}{%- if m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}"
        + "{%- elif m.role == 'assistant' %}{%- set said = m.content.split('</think>')[-1] %}{{ '"
        + start
        + "' }}"
        + assistant
        + QWEN_CALLS.replace("m.content", "said")
        + "{{ '<|im_end|>\\n' }}{%- elif m.role == 'tool' %}"
        + QWEN_RESULT
        + "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
        + generation
    )


RELEASED = (
    "{%- set said = said.lstrip('\\n') %}{%- if loop.index0 > ns.last and '</think>' in m.content %}"
    "{%- set thought = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
    "{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said }}{%- else %}{{ said }}{%- endif %}"
)
OPENED = "{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
SHUT = "{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
MARKED = "{%- if loop.index0 > ns.last %}{{ m.content }}{%- else %}{{ '<think></think>' + said.lstrip() }}{%- set said = 'x' %}{%- endif %}"
TEMPLATES = {
    "qwen3": QWEN3,
    "qwen3 as released": qwen_like(RELEASED),
    "qwen3 thinking": qwen_like(RELEASED, OPENED),
    "qwen3 without thinking": qwen_like(RELEASED, SHUT),
    "deepseek r1": qwen_like("{{ said }}", "{{ '<|im_start|>' }}{%- endif %}", "<|im_start|>"),
    "deepseek r1 that begins to think": qwen_like("{{ said }}", "{{ '<|im_start|><think>\\n' }}{%- endif %}", "<|im_start|>"),
    "glm": qwen_like(MARKED),
}
"""Families of models that think, by what their templates do with it."""
ALWAYS = {"deepseek r1", "deepseek r1 that begins to think"}
"""Remove it before results of tools too."""
BEGUN = {"qwen3 thinking": "<think>\n", "deepseek r1 that begins to think": "<think>\n"}


class Thinker:
    """A model folder of one family, with a policy."""

    def __init__(self, folder, settings, begun=""):
        self.encoder = PromptEncoder(folder, PromptLimits(8), turns=settings)
        self.grammar = self.encoder.grammar
        self.tokenizer = self.grammar._tokenizer
        self.begun = begun
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")

    def render(self, messages):
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        return self.tokenizer.apply_chat_template(
            [as_template_takes(message) for message in messages], tools=tools, tokenize=False, add_generation_prompt=True
        )

    def ids(self, text):
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def drawn(self, said):
        """The canonical ids of an assistant's message, which may have begun to think in the prompt."""
        return (*self.ids(said.removeprefix(self.begun)), self.end)


class Play:
    """A sequence so far, as a rollout worker has it."""

    def __init__(self, thinker, first):
        self.thinker = thinker
        self.ids, self.turns, self.forks = thinker.encoder.encode_conversation([first]), (), 0

    def turn(self, drawn, follows):
        """Draws a turn, and goes on with what follows it."""
        grammar = self.thinker.grammar
        so_far = TurnsSoFar((*self.ids, *drawn), (*self.turns, (len(self.ids), len(self.ids) + len(drawn))))
        extension = grammar.extension(drawn[-1] if drawn else None, follows)
        before = grammar.without_thinking(so_far) if extension.ends_thinking else so_far.token_ids
        self.turns = so_far.turns if before == so_far.token_ids else ()
        self.forks += before != so_far.token_ids
        self.ids = (*before, *extension.token_ids)
        return so_far, before


@pytest.fixture(scope="module")
def thinkers(model_folders, turn_settings):
    """Gives the family of a template with a policy."""
    folders, made = {}, {}

    def give(name, policy="template", **changed):
        if name not in folders:
            folders[name] = model_folders("qwen", template=TEMPLATES.get(name, name))
        key = (name, policy, *changed.items())
        if key not in made:
            made[key] = Thinker(folders[name], turn_settings(thinking=policy, **changed), BEGUN.get(name, ""))
        return made[key]

    return give


@pytest.fixture(params=TEMPLATES, scope="module")
def name(request):
    return request.param


def user(text):
    return ChatMessage("user", text)


def thought(text, answer):
    return f"<think>\n{text}\n</think>\n\n{answer}"


def test_a_conversation_has_the_ids_that_the_template_gives_it_each_time_a_user_speaks(thinkers, name):
    thinker = thinkers(name)
    messages, play = [user("what is 7?")], Play(thinker, user("what is 7?"))
    for n, answer in enumerate(["the fox", "} dog\n\nlazy", "", "7 + 12 é🙂"]):
        said = thought(f"hm {n}?\n\nso <b>", answer)
        play.turn(thinker.drawn(said), [user(f"and {n}?")])
        messages += [ChatMessage("assistant", said), user(f"and {n}?")]
        assert "hm" not in thinker.render(messages)
        assert play.ids == thinker.ids(thinker.render(messages))
        assert play.forks == n + 1, "one each time, of the turns that are new"


def test_a_turn_without_thinking_begins_no_sequence_unless_the_prompt_begins_the_thinking(thinkers, name):
    thinker = thinkers(name)
    play = Play(thinker, user("x"))
    play.turn(thinker.drawn("the fox"), [user("and?")])
    assert play.forks == (name in BEGUN or name == "qwen3 without thinking")
    if name != "glm":  # which writes its mark in turns that thought nothing too
        said = [user("x"), ChatMessage("assistant", "the fox"), user("and?")]
        assert play.ids == thinker.ids(thinker.render(said))


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "qwen3 without thinking"])
def test_thinking_stays_while_tools_work_and_leaves_with_the_next_user(thinkers, name):
    """Turns of a cycle of tools: all of their thinking leaves at once, where the template does not remove it at each result."""
    thinker = thinkers(name)
    call, result = ChatCall("look_up", '{"word": "fox"}', "c0"), ChatMessage("tool", "an animal", "c0", "look_up")
    play, messages = Play(thinker, user("fox?")), [user("fox?")]
    for n in range(3):
        said = thought(f"hm {n}", "")
        cut = thinker.render(messages)
        messages += [ChatMessage("assistant", said, calls=(call,)), result]
        whole = thinker.render(messages)
        text = whole.removeprefix(cut) if name not in ALWAYS else said.removeprefix(thinker.begun) + whole[whole.rindex("\n<tool_call>") :]
        drawn = (*thinker.ids(text[: text.index("<|im_end|>")]), thinker.end)
        play.turn(drawn, [result])
        assert play.forks == ((n + 1) if name in ALWAYS else 0)
        assert play.ids == thinker.ids(whole)
    said = thought("so", "an animal")
    play.turn(thinker.drawn(said), [user("sure?")])
    messages += [ChatMessage("assistant", said), user("sure?")]
    assert play.forks == (4 if name in ALWAYS else 1)
    if name not in ("qwen3", "glm"):  # which write a line break before a call that thinking precedes, and that belongs to no answer
        assert play.ids == thinker.ids(thinker.render(messages))


def test_thinking_that_is_kept_is_an_extension(thinkers, name):
    for policy, forks in (("keep", 0), ("template", 1)):
        thinker = thinkers(name, policy)
        play = Play(thinker, user("x"))
        so_far, _ = play.turn(thinker.drawn(thought("hm", "fox")), [user("and?")])
        assert play.forks == forks
        assert (play.ids[: len(so_far.token_ids)] == so_far.token_ids) == (policy == "keep")


def check_random(thinker, draw, episodes):
    """Whatever was drawn: merges that no tokenizer would choose, parts of characters, tags anywhere and many times.

    What is before a turn's answer, and its answer, are pieces of what was there: no id is made again.
    """
    tags = [thinker.tokenizer.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    line_breaks = thinker.ids("\n\n") + thinker.ids("\n")
    opening, instead = thinker.grammar._thinking._opening, thinker.grammar._thinking._instead
    for _ in range(episodes):
        play = Play(thinker, user("begin"))
        for _ in range(draw.randint(1, 6)):
            some = [draw.randrange(len(thinker.tokenizer)) for _ in range(draw.randint(0, 8))]
            some += draw.choices([*tags, *line_breaks], k=draw.randint(0, 4))
            draw.shuffle(some)
            drawn = (*some, *[thinker.end] * draw.randint(0, 1))
            prompt = play.ids
            so_far, before = play.turn(drawn, [user("go on")])
            assert so_far.token_ids == prompt + drawn
            head = prompt[: len(prompt) - len(opening)] if opening else prompt
            left = before[len(head) :]
            assert before[: len(head)] == head
            kept = left[len(instead) :] if left[: len(instead)] == instead else left
            assert left == drawn or drawn[len(drawn) - len(kept) :] == kept


def test_every_id_of_a_sequence_without_thinking_was_there_before(thinkers, name):
    check_random(thinkers(name), random.Random(7), 60)


@pytest.mark.slow
def test_every_id_of_a_sequence_without_thinking_was_there_before_in_two_thousand_episodes(thinkers, name):
    check_random(thinkers(name), random.Random(8), 2000)


@given(st.text("ab\n é", max_size=12), st.text("ab\n é", max_size=12), st.booleans())
def test_the_answer_is_what_follows_the_thinking(thinkers, thinking, answer, splits):
    """Also of ids by single characters."""
    thinker = thinkers("qwen3")
    text = f"<think>{thinking}</think>{answer}"
    pieces = (
        [token for piece in ("<think>", *thinking, "</think>", *answer) for token in thinker.ids(piece)] if splits else thinker.ids(text)
    )
    drawn = (*pieces, thinker.end)
    left = thinker.grammar.without_thinking(TurnsSoFar((5, *drawn), ((1, 1 + len(drawn)),)))
    assert left[0] == 5
    assert left[1:] == drawn[len(drawn) + 1 - len(left) :]
    said = thinker.tokenizer.decode(left[1:]).removesuffix("<|im_end|>")
    assert said.lstrip("\n") == answer.lstrip("\n")
    if splits:
        assert said == answer.lstrip("\n")


def test_the_end_of_thinking_is_the_last_one_before_a_call(thinkers):
    thinker = thinkers("qwen3")

    def left(text):
        drawn = thinker.ids(text)
        return thinker.tokenizer.decode(thinker.grammar.without_thinking(TurnsSoFar(drawn, ((0, len(drawn)),))))

    call = '<tool_call>\n{"name": "look_up", "arguments": {"word": "</think> fox"}}\n</tool_call>'
    assert left(f"<think>\na\n</think>\n\nb</think>\nc\n{call}") == f"c\n{call}"
    assert left(f"<think>\nI <tool_call> then\n</think>\n\n{call}") == call
    assert left("<think>\nnever done") == "<think>\nnever done", "a turn that was cut off is not divided"
    assert left("fox") == "fox"
    assert left("") == ""


def test_an_end_of_thinking_in_a_token_with_more_is_not_cut():
    """Of a tokenizer that has no such tokens: then all of the turn stays."""
    from gradbus.tokenizer.grammar.thinking import Thinking
    from gradbus.tokenizer.grammar.thinking_probe import ThinkingRule

    class Nothing:
        ids = ()

    class Control:
        def encoding(self, text):
            return Nothing

        def frame(self, text):
            return text

    pieces = ["<th", "ink>a</thi", "nk>", "\n", "b", "nk>b"]
    looks = []

    def written(ids):
        looks.append(len(ids))
        return "".join(pieces[token] for token in ids)

    thinking = Thinking(ThinkingRule(frozenset({"user"})), Control(), written)
    assert thinking.taken_out((0, 1, 2, 3, 4), ((0, 5),)) == (4,)
    assert thinking.taken_out((0, 1, 2, 3, 3), ((0, 5),)) == ()
    assert thinking.taken_out((0, 1, 5), ((0, 3),)) == (0, 1, 5)
    looks.clear()
    assert thinking.taken_out((0, 1, 2, *[3] * 4000, 4), ((0, 4004),)) == (4,)
    assert len(looks) < 40, "each look decodes the beginning of the turn: one for each token would take hours"


def test_strip_removes_it_where_the_template_would_not(thinkers, families):
    plain = qwen_like("{{ m.content }}{%- set said = m.content %}")
    for policy, forks in ((None, 0), ("template", 0), ("strip", 1)):
        thinker = thinkers(plain, policy)
        play = Play(thinker, user("x"))
        play.turn(thinker.drawn(thought("hm", "fox")), [ChatMessage("tool", "6", "c0", "mul")])
        assert play.forks == 0, "tools work"
        play.turn(thinker.drawn("so"), [user("and?")])
        assert play.forks == forks
        assert ("hm" in thinker.tokenizer.decode(play.ids)) == (not forks)
    opened = thinkers(qwen_like("{{ m.content }}{%- set said = m.content %}", OPENED), "strip")
    play = Play(opened, user("x"))
    play.turn(opened.drawn("hm\n</think>\n\nfox"), [user("and?")])
    assert "<|im_start|>assistant\nfox<|im_end|>" in opened.tokenizer.decode(play.ids)


@pytest.mark.parametrize("policy", [None, "template", "strip", "keep"])
@pytest.mark.parametrize("shape", ["chatml", "qwen", "llama3", "alternating", "qwen3_coder"])
def test_templates_that_know_no_thinking_take_every_policy(model_folders, turn_settings, shape, policy):
    encoder = PromptEncoder(model_folders(shape), PromptLimits(8), turns=turn_settings(thinking=policy))
    encoder.check_thinking(policy)
    assert encoder.grammar._thinking.rule.at == ({"user"} if policy == "strip" else frozenset())


def test_without_frames_there_is_no_thinking_that_a_template_could_remove(thinkers):
    for policy, at in ((None, frozenset()), ("template", frozenset()), ("strip", {"user"})):
        assert thinkers("qwen3", policy, parser="plain").grammar._thinking.rule.at == at


def test_a_template_that_removes_thinking_is_refused_until_the_run_says_what_becomes_of_it(thinkers, name, model_folders):
    message = r"environment.thinking and the chat template do not fit: it removes the thinking of turns before messages of {}; set environ"
    with pytest.raises(ModelError, match=message.format("tool and user" if name in ALWAYS else "user")):
        thinkers(name, None)
    at_submission = PromptEncoder(model_folders("qwen", template=TEMPLATES[name]), PromptLimits(8))
    with pytest.raises(ModelError, match=message.format("user")):
        at_submission.check_thinking(None)
    for policy in ("keep", "template", "strip"):
        at_submission.check_thinking(policy)


CASES = [
    (
        qwen_like("{%- if loop.index0 < ns.last %}{{ said | replace('\\n', '~') }}{%- else %}{{ m.content }}{%- endif %}"),
        "it writes '.*~~' in place of thinking",
    ),
    (
        qwen_like("{%- if loop.index0 < ns.last and not m.tool_calls %}{{ said }}{%- else %}{{ m.content }}{%- endif %}"),
        "it removes the thinking of some turns, and that of others stays",
    ),
    (
        qwen_like("{%- if messages[-1].role == 'tool' %}{{ said }}{%- else %}{{ m.content }}{%- endif %}"),
        "it removes the thinking of some turns, and that of others stays",
    ),
]


@pytest.mark.parametrize(("template", "cause"), CASES)
def test_a_template_that_ids_cannot_follow_is_refused_and_may_keep_it(thinkers, template, cause):
    with pytest.raises(ModelError, match=rf"do not fit: .*({cause}).*; set environment.thinking = .keep."):
        thinkers(template, "template")
    assert thinkers(template, "keep").grammar._thinking.rule.at == frozenset()


def test_a_template_whose_text_joins_what_is_left_of_a_turn_is_refused(thinkers):
    """The line break before the turn, and those after its thinking, are one token of the whole conversation."""
    joins = qwen_like("{{ said }}")
    with pytest.raises(ModelError, match="without its thinking, a turn that was drawn has other tokens than the template gives it; set"):
        thinkers(joins, "template")
    assert thinkers(joins, "strip").grammar._thinking.rule.at == {"tool", "user"}


def test_thinking_in_channels_is_kept_alone(model_folders, turn_settings):
    for policy in (None, "template", "strip"):
        with pytest.raises(ModelError, match=r'thinks in channels.*; set environment.thinking = "keep"'):
            PromptEncoder(model_folders("gpt_oss"), PromptLimits(8), turns=turn_settings(thinking=policy))
    assert PromptEncoder(model_folders("gpt_oss"), PromptLimits(8), turns=turn_settings(thinking="keep")).grammar.parser == "gpt_oss"
