"""How turns follow each other in one run: its chat template, its tools and its way to write calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gradbus.errors import DatasetError, ModelError
from gradbus.strict_json import parse_json
from gradbus.tokenizer.chat_template import ChatTemplate
from gradbus.tokenizer.control_tokens import ControlTokens
from gradbus.tokenizer.grammar.detection import PARSERS, parser_of
from gradbus.tokenizer.grammar.extension import Extender
from gradbus.tokenizer.grammar.parsers.codec import Parser, Tools
from gradbus.tokenizer.grammar.parsers.plain import written_call
from gradbus.tokenizer.grammar.probe import NoFrameError, TemplateProbe
from gradbus.tokenizer.grammar.sentinels import Conversation
from gradbus.tokenizer.grammar.stop_texts import stop_hit
from gradbus.tokenizer.grammar.template_frames import TemplateFrames
from gradbus.tokenizer.grammar.thinking import Thinking
from gradbus.tokenizer.grammar.thinking_probe import ThinkingProbe, ThinkingRule, thinking_rule, thoughtful, thoughts
from gradbus.tokenizer.template_tools import TemplateTools, read_tools
from gradbus.tokenizer.turns import ChatCall, ChatMessage, Extension, ParsedTurn, TurnSettings, TurnsSoFar

if TYPE_CHECKING:
    from gradbus.spec.sections import Thinking as ThinkingPolicy
    from gradbus.spec.sections import ToolParser
    from gradbus.tokenizer.grammar.parsers.codec import Codec

_PROBE: Final = "a probe"
MARKERS: Final = "<tool_call></tool_call><tool_response></tool_response><think></think>"
"""Added tokens that are never content, whether a template writes them or not."""
_STUB: Final = '[{"name":"f","description":"f","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}]'
"""A tool for the probe of an agent's run, whose conversations bring theirs later."""
_MOST_READERS: Final = 64
"""Lists of tools for which a parser is kept; an agent that takes others each turn has them made again."""


class TurnGrammar:
    """Parses turns, and makes what follows them."""

    def __init__(
        self, tokenizer: Any, control: ControlTokens, template: ChatTemplate, stop_ids: Collection[int], settings: TurnSettings
    ) -> None:
        """Raises ModelError for a template that cannot go on after a turn."""
        if not control.can_frame:
            raise ModelError("the tokenizer cannot take the text of a control token as text, so a tool could forge a turn; use another one")
        self._tokenizer = tokenizer
        self._control = control
        self._template = template
        self._stop_ids = stop_ids
        self._own_tools = settings.tools_json
        probed = read_tools(settings.tools_json) or (read_tools(_STUB) if settings.tools_by_conversation else [])
        self._has_tools = bool(probed)
        self._probed_tools = template.tools_of(probed)
        self.is_plain = settings.parser == "plain" or not template.exists
        """Whether there are no frames: what a message says is all that it writes."""
        frames = TemplateFrames() if self.is_plain else self._probed()
        self._codec = _TokenizerCodec(tokenizer)
        self._thinking = Thinking(self._thinking_rule(settings.thinking, frames), control, self._codec.written)
        self.parser: ToolParser = settings.parser or self._detected(frames, self._codec)
        """How calls are read."""
        self._reader = lru_cache(_MOST_READERS)(self._reader_of)
        ends = {token for token in stop_ids if not frames.end or self._is_control(token) or not self._spells_control(frames.end)}
        result_tokens = None if settings.is_agent else settings.result_tokens
        self._extender = Extender(frames, control, ends, result_tokens, self._thinking.rule.at)
        if settings.thinking == "template" and self._thinking.rule.at:
            self._check_thinking(frames)

    def encode_plain(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Token ids `[P]` of messages without frames, one after the other, which are text alone."""
        return tuple(self._control.encoding("".join(self._control.as_text(_plain(message)) for message in messages), special=True).ids)

    def parse(self, drawn: Sequence[int], *, stopped: bool, tools_json: str = "", stop: Sequence[str] = ()) -> ParsedTurn:
        """Text and calls of a turn; nothing is a call in one that was cut off, nor in a conversation without tools.

        `tools_json` are the tools of its conversation; empty: those of the run. The turn ends at the first text of `stop`; a call in which
        that stands is text. Raises DatasetError for tools that are none.
        """
        if stop and (hit := stop_hit(drawn, stop, self._codec.text)) is not None:
            whole = self.parse(drawn[: hit.kept], stopped=True, tools_json=tools_json)
            if hit.text in whole.text and not any(call.status == "malformed" for call in whole.calls):
                return ParsedTurn(whole.text[: whole.text.index(hit.text)], whole.calls, hit.kept, hit.text)
            return ParsedTurn(hit.before, (), hit.kept, hit.text)
        said = drawn[:-1] if stopped and drawn and self._is_end(drawn[-1]) else drawn
        read = self._reader(tools_json or self._own_tools) if stopped else None
        return ParsedTurn(self._tokenizer.decode(list(said), skip_special_tokens=True)) if read is None else read(said)

    def _reader_of(self, tools_json: str) -> Parser | None:
        """What reads calls of these tools; None if there are none."""
        tools = read_tools(tools_json)
        return PARSERS[self.parser](self._codec, Tools.of(tools)) if tools else None

    def tools_of(self, tools_json: str) -> TemplateTools:
        """The tools that a conversation brings, as text alone. Raises DatasetError for tools that are none."""
        return self._template.tools_of(self._control.as_texts(read_tools(tools_json)))

    def as_text(self, message: ChatMessage) -> ChatMessage:
        """The message without characters that would stand for control tokens: whoever made it may have them from the policy."""
        clean = self._control.as_text
        calls = tuple(ChatCall(*map(clean, (call.name, call.arguments_json, call.call_id))) for call in message.calls)
        return ChatMessage(message.role, clean(message.content), clean(message.call_id), clean(message.name), calls)

    def extension(self, last_drawn: int | None, messages: Sequence[ChatMessage]) -> Extension:
        """The ids after a turn whose last id is `last_drawn`. Raises ModelError for messages that the template does not take."""
        return self._extender.extension(last_drawn, messages)

    def without_thinking(self, so_far: TurnsSoFar) -> tuple[int, ...]:
        """The ids `[T]` of the sequence without the thinking in its turns."""
        return self._thinking.taken_out(so_far.token_ids, so_far.turns)

    def _rendering(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True, tools: bool = True) -> str:
        if not tools:
            return self._template.without_tools(messages, _PROBE)
        return self._template.rendered(messages, _PROBE, framed=False, generation_prompt=generation_prompt, tools=self._probed_tools)

    def _probed(self) -> TemplateFrames:
        ends = [str(self._tokenizer.decode([token])) for token in sorted(self._stop_ids)]
        try:
            return TemplateProbe(self._rendering, self._control, ends).frames(with_tools=self._has_tools)
        except (NoFrameError, DatasetError) as error:
            raise self._template.error(f"the chat template cannot go on after a turn: {error}; use another chat template") from error

    def _thinking_rule(self, policy: ThinkingPolicy | None, frames: TemplateFrames) -> ThinkingRule:
        if self.is_plain:
            return ThinkingRule(frozenset({"user"} if policy == "strip" else ()))
        return thinking_rule(ThinkingProbe(self._rendering, self._control), policy, {"user", frames.results_from}, self._template)

    def _check_thinking(self, frames: TemplateFrames) -> None:
        """Raises ModelError unless a conversation of canonical text has the ids that the template gives it."""
        probe = ThinkingProbe(self._rendering, self._control)
        conversation = Conversation(("user", "assistant", "user", "assistant", "user"))
        messages = thoughtful(conversation, thoughts())
        ids = self._encoded(self._rendering(messages[:1]))
        for at in (1, 3):
            drawn = self._encoded(messages[at]["content"].removeprefix(probe.begun) + frames.close)
            so_far = TurnsSoFar((*ids, *drawn), ((len(ids), len(ids) + len(drawn)),))
            follows = [ChatMessage("user", messages[at + 1]["content"])]
            ids = (*self.without_thinking(so_far), *self.extension(drawn[-1], follows).token_ids)
        if ids != self._encoded(self._rendering(messages)):
            raise self._template.error(
                'without its thinking, a turn that was drawn has other tokens than the template gives it; set environment.thinking = "keep"'
            )

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._control.encoding(self._control.frame(text)).ids)

    def _detected(self, frames: TemplateFrames, codec: Codec) -> ToolParser:
        if self.is_plain:
            return "plain"
        found = parser_of(self._control.encoding(frames.call).ids, codec)
        if found is None and frames.call and self._has_tools:
            written = self._control.unframed(frames.call)
            raise self._template.error(f"no parser reads the call that the chat template writes, {written!r}; set environment.tool_parser")
        return found or "hermes"

    def _is_end(self, token: int) -> bool:
        """Whether a stop token says nothing: a run may stop at tokens of text, which are part of what the policy said."""
        return token in self._stop_ids and self._is_control(token)

    def _is_control(self, token: int) -> bool:
        return self._spells_control(str(self._tokenizer.decode([token])))

    def _spells_control(self, text: str) -> bool:
        return self._control.id_of(text) is not None


class _TokenizerCodec:
    """transformers' tokenizer, as parsers need it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def written(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        return self._added.get(token)


def _plain(message: ChatMessage) -> str:
    return message.content + "".join(written_call(call.name, call.arguments_json) for call in message.calls)


def as_template_takes(message: ChatMessage) -> dict[str, Any]:
    """The message for a chat template."""
    more: dict[str, Any] = {"name": message.name, "tool_call_id": message.call_id, "tool_calls": [*map(_call, message.calls)]}
    return {"role": message.role, "content": message.content} | {key: value for key, value in more.items() if value}


def _call(call: ChatCall) -> dict[str, Any]:
    """The call in OpenAI's form, with arguments as an object where they are one: not every template takes a text."""
    try:
        arguments = parse_json(call.arguments_json.encode())
    except ValueError:
        arguments = None
    function = {"name": call.name, "arguments": arguments if isinstance(arguments, dict) else call.arguments_json}
    return {"id": call.call_id, "type": "function", "function": function}
