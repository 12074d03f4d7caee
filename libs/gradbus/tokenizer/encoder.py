"""Prompts to tokens, and responses to text. Runs in a tokenizer's process: what it computes is the user's to decide.

Text is tokenised here once; every other service works on the ids (R11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from gradbus.errors import DatasetError, ModelError
from gradbus.formats.hf_model import read_object
from gradbus.formats.reward_model import folder_info
from gradbus.tokenizer.chat_template import ChatTemplate
from gradbus.tokenizer.control_tokens import ControlTokens
from gradbus.tokenizer.errors import SHOWN, ModelFileError, cause_of
from gradbus.tokenizer.grammar.thinking_probe import ThinkingProbe, thinking_rule
from gradbus.tokenizer.grammar.turn_grammar import MARKERS, TurnGrammar, as_template_takes
from gradbus.tokenizer.loading import TOKENIZER, load_tokenizer
from gradbus.tokenizer.template_tools import TemplateTools, read_tools
from gradbus.tokenizer.turns import ChatMessage, Extension, ParsedTurn, TurnSettings, TurnsSoFar

if TYPE_CHECKING:
    from gradbus.spec.sections import Thinking

CHAT_TEMPLATE: Final = "chat_template.jinja"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
"""Where older folders have their chat template."""
_STOP_FILES: Final = ("config.json", "generation_config.json")
_ASSISTANT: Final = "assistant"
_KINDS: Final = "a prompt is a text, or a list of {role, content} messages; correct the dataset's prompt column"
_MAX_PROMPT_TOKENS: Final = 1 << 20
"""As many as a row of a dataset has bytes: a tokenizer may make any number of tokens of a character."""
_MAX_STOP_IDS: Final = 1024
_MAX_MESSAGES: Final = 256
"""Of a row with given responses: the template writes the conversation twice for each turn."""
_MAX_ID: Final = 2**31 - 1
_MAX_CHARACTERS_PER_TOKEN: Final = 1024
"""A decoder may replace every token by any text; this bounds what a response brings into the buffer."""


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """What a run lays down for its prompts."""

    max_new_tokens: int
    max_prompt_tokens: int | None = None
    """None: as many as the model's context has room for."""
    stop_token_ids: tuple[int, ...] = ()
    """Stop ids beyond those of the model."""
    submitted_unix_ns: int | None = None
    """When the run was submitted: the time that `strftime_now` gives to a chat template. None: the present."""


def _no_report(_file: str) -> None:
    pass


class PromptEncoder:
    """The tokenizer of a model folder, and a run's limits on prompts."""

    def __init__(
        self, folder: Path, limits: PromptLimits, report: Callable[[str], None] = _no_report, turns: TurnSettings | None = None
    ) -> None:
        """Raises ModelError when the folder has no tokenizer that works, its context is shorter than the response, or it cannot go on
        after a turn, if there are `turns`.

        `report` is told the name of each file before work with it begins.
        """
        info = folder_info(folder)
        room = info.context_length - limits.max_new_tokens
        if room < 1:
            raise ModelError(
                f"max_new_tokens = {limits.max_new_tokens} fills the model's context of {info.context_length}; lower max_new_tokens"
            )
        self.max_prompt_tokens = min(room, limits.max_prompt_tokens or room, _MAX_PROMPT_TOKENS)
        self._vocab_size = info.vocab_size
        self.context_length = info.context_length
        self._report = report
        _check_tokenizer_config(folder)
        self._template_file = CHAT_TEMPLATE if (folder / CHAT_TEMPLATE).is_file() else _TOKENIZER_CONFIG
        report(TOKENIZER)
        self._tokenizer = load_tokenizer(folder)
        self._is_agents = turns is not None and turns.is_agent
        self._control = ControlTokens(self._tokenizer, MARKERS if turns else "", trusts_assistant=not self._is_agents)
        fast = self._tokenizer.is_fast and not self._tokenizer.clean_up_tokenization_spaces
        self._backend = self._tokenizer.backend_tokenizer if fast else None
        if limits.submitted_unix_ns is not None:
            _stop_clock(datetime.fromtimestamp(limits.submitted_unix_ns / 1e9, UTC))
        self.stop_token_ids = frozenset(limits.stop_token_ids) | _stop_ids(folder) | _as_ids(self._tokenizer.eos_token_id, TOKENIZER)
        self._template = ChatTemplate(self._tokenizer, self._control, self._begin_template, read_tools(turns.tools_json) if turns else ())
        self.grammar = TurnGrammar(self._tokenizer, self._control, self._template, self.stop_token_ids, turns) if turns else None
        """How turns follow each other, of a run with an environment."""

    def encode_conversation(self, messages: Sequence[ChatMessage], tools_json: str = "") -> tuple[int, ...]:
        """Token ids `[P]` of messages with which an environment begins, or in which an agent asks, with `tools_json` if that is not empty.

        Raises as `encode`, and ModelError without turns. What the files cannot do with an agent's messages is a DatasetError; these may
        be longer than the context.
        """
        grammar = self._turn_grammar
        if not self._is_agents:
            where = "an environment's conversation"
            return self._checked(self._conversation(messages, tools_json, where), where)
        where = "an agent's conversation"
        try:
            ids = self._conversation([grammar.as_text(message) for message in messages], tools_json, where)
            return self._checked(ids, where, most=_MAX_PROMPT_TOKENS)
        except ModelError as error:
            raise DatasetError(error.text if isinstance(error, ModelFileError) else str(error)) from error

    def _conversation(self, messages: Sequence[ChatMessage], tools_json: str, where: str) -> tuple[int, ...]:
        grammar = self._turn_grammar
        tools = grammar.tools_of(tools_json) if tools_json else None  # without frames they are not written, and still read
        if grammar.is_plain:
            return grammar.encode_plain(messages)
        return self._ids_of([as_template_takes(message) for message in messages], where, tools)

    def parse(self, drawn: Sequence[int], *, stopped: bool, tools_json: str = "", stop: Sequence[str] = ()) -> ParsedTurn:
        """Text and calls of a turn. Raises ModelFileError when the tokenizer makes too much of it, and ModelError without turns."""
        turn = self._turn_grammar.parse(drawn, stopped=stopped, tools_json=tools_json, stop=stop)
        _check_size(len(drawn), len(turn.text) + sum(len(call.name) + len(call.arguments_json) for call in turn.calls))
        return turn

    def extension(self, drawn: Sequence[int], messages: Sequence[ChatMessage]) -> Extension:
        """The ids after a turn, of which the last id is enough.

        Raises ModelError for messages that the template does not take there; for an agent's, DatasetError.
        """
        try:
            return self._turn_grammar.extension(drawn[-1] if drawn else None, messages)
        except ModelError as error:
            if self._is_agents:
                raise DatasetError(str(error)) from error
            raise

    def without_thinking(self, so_far: TurnsSoFar) -> tuple[int, ...]:
        """The ids `[T]` of a sequence without the thinking in its turns."""
        return self._turn_grammar.without_thinking(so_far)

    def check_thinking(self, policy: Thinking | None) -> None:
        """Raises ModelFileError if the policy does not fit the chat template, as far as that is known without the run's tools."""
        if self._template.exists:
            rendering = partial(self._template.without_tools, where="a probe")
            thinking_rule(ThinkingProbe(rendering, self._control), policy, {"user"}, self._template)

    @property
    def _turn_grammar(self) -> TurnGrammar:
        if self.grammar is None:
            raise ModelError("the tokenizer was loaded without turns; open it with TurnSettings")
        return self.grammar

    def encode(self, prompt: object, line: int) -> tuple[int, ...]:
        """Token ids `[P]` of a prompt: plain text by the tokenizer, messages by the chat template.

        Plain text may spell control tokens, as the template does; what a message says is text alone (see `ControlTokens`).
        Raises DatasetError (naming `line`) for a prompt of another kind, empty or too long, ModelError for files that fail on it.
        """
        return self._prompt(prompt, f"line {line}")

    def _prompt(self, prompt: object, where: str) -> tuple[int, ...]:
        if isinstance(prompt, str):
            _check_text(prompt, where)
            ids = self._ids(prompt, where, special=True)
        else:
            ids = self._ids_of(prompt, where)
        return self._checked(ids, where)

    def _ids_of(self, messages: object, where: str, tools: TemplateTools | None = None) -> tuple[int, ...]:
        """The ids of messages by the chat template, which writes the special tokens too."""
        checked = _messages(messages, where)
        framed = self._template.are_spelled(checked, tools)
        return self._ids(self._template.rendered(checked, where, framed=framed, tools=tools), where, framed=framed)

    def _checked(self, ids: tuple[int, ...], where: str, most: int | None = None) -> tuple[int, ...]:
        """`most` tokens, or as many as a run's prompt may have."""
        if not ids:
            raise DatasetError(f"{where} has an empty prompt; remove it")
        if len(ids) > (most or self.max_prompt_tokens):
            raise DatasetError(
                f"the prompt of {where} has {len(ids)} tokens, at most {most or self.max_prompt_tokens} fit; "
                "shorten it or lower max_new_tokens"
            )
        self._check_known(ids)
        return ids

    def encode_responses(self, prompt: object, responses: Sequence[object], prompt_tokens: int, line: int) -> list[tuple[int, ...]]:
        """Token ids `[T]` of given responses to a prompt of so many tokens; in place of an id that is not trained stands its complement.

        They are what the policy would have to sample: text after text, by the chat template after messages, up to the stop token. Raises
        as `encode`, and DatasetError for a response that does not fit the context after its prompt.
        """
        where = f"line {line}"
        encoded = [self._response(prompt, response, where) for response in responses]
        if len(set(encoded)) < len(encoded):
            raise DatasetError(f"the responses of {where} have the same tokens, which teaches nothing; leave the row out")
        for ids in encoded:
            if not any(token >= 0 and token not in self.stop_token_ids for token in ids):
                raise DatasetError(f"a response of {where} has no token but the stop token; give it text, or correct the chat template")
            self._check_known([max(token, ~token) for token in ids])
            if prompt_tokens + len(ids) > self.context_length:
                raise DatasetError(
                    f"{where} has {prompt_tokens} tokens of prompt and {len(ids)} of response, {self.context_length} fit the model; "
                    "shorten the row or leave it out"
                )
        return encoded

    def _response(self, prompt: object, response: object, where: str) -> tuple[int, ...]:
        if isinstance(prompt, str):
            _check_text(str(response), where)
            trained, _ = self._turn(self._ids(str(response), where))
        else:
            answers = [{"role": _ASSISTANT, "content": response}] if isinstance(response, str) else _messages(response, where)
            trained = self._turns(_messages(prompt, where), answers, where)
        return trained if trained[-1:] and trained[-1] in self.stop_token_ids else (*trained, *self._stop_token)

    def _turns(self, messages: list[dict[str, Any]], answers: Sequence[dict[str, Any]], where: str) -> tuple[int, ...]:
        """The tokens after `messages` up to the end of the assistant's last turn. What others say and the template adds is not trained."""
        if len(messages) + len(answers) > _MAX_MESSAGES:
            raise DatasetError(f"{where} has {len(messages) + len(answers)} messages, at most {_MAX_MESSAGES} are taken; split it")
        framed = self._template.are_spelled([*messages, *answers])
        ids: list[int] = []
        written, end = self._template.rendered(messages, where, framed=framed), 0
        for answer in answers:
            if answer["role"] == _ASSISTANT:
                before = self._template.rendered(messages, where, framed=framed)
                ids += [~token for token in self._ids(_rest(before, written, where), where, framed=framed)]
                written = self._template.rendered([*messages, answer], where, framed=framed, generation_prompt=False)
                trained, after = self._turn(self._ids(_rest(written, before, where), where, framed=framed))
                ids, end = [*ids, *trained], len(ids) + len(trained)
                ids += [~token for token in after]
            messages = [*messages, answer]
        return tuple(ids[:end])

    def _turn(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens up to the first stop token, and what follows it."""
        end = next((at + 1 for at, token in enumerate(ids) if token in self.stop_token_ids), len(ids))
        return ids[:end], ids[end:]

    @property
    def _stop_token(self) -> tuple[int, ...]:
        """The stop token that ends a response: the tokenizer's own, if it has one; none if the model has none."""
        found = _as_ids(self._tokenizer.eos_token_id, TOKENIZER) or self.stop_token_ids
        return (min(found),) if found else ()

    def _check_known(self, ids: Sequence[int]) -> None:
        if max(ids) >= self._vocab_size:
            raise ModelError(f"the tokenizer gives id {max(ids)}, the model has {self._vocab_size}; use the model's own tokenizer")

    def difference(self, folder: Path) -> str:
        """In words, the first token that the tokenizer in `folder` has under another id than this one; empty if there is none.

        Raises ModelFileError if that tokenizer cannot be loaded.
        """
        mine, theirs = (tokenizer.get_vocab() for tokenizer in (self._tokenizer, load_tokenizer(folder)))
        for token, at in sorted(mine.items(), key=lambda item: item[1]):
            if token not in theirs:
                return f"token {token[:SHOWN]!r} of id {at} is missing"
            if theirs[token] != at:
                return f"token {token[:SHOWN]!r} has id {theirs[token]}, not {at}"
        others = sorted((at, token) for token, at in theirs.items() if token not in mine)
        return f"token {others[0][1][:SHOWN]!r} of id {others[0][0]} is one more" if others else ""

    @cached_property
    def _tokens(self) -> int:
        """Number of ids, also of those between them that no token has."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def spelled(self, first: int, number: int) -> tuple[list[str], list[tuple[int, ...]]]:
        """The texts of the tokens from an id on, and the ids of each text; of fewer at the end. By them another tokenizer is compared."""
        texts = [str(self._tokenizer.decode([token])) for token in range(first, min(first + number, self._tokens))]
        for text in texts:
            _check_size(1, len(text))
        return texts, [self._ids(text, "a token's text") for text in texts]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Texts of responses, without special tokens. Raises ModelFileError when the tokenizer fails, or makes too much of them."""
        self._report(TOKENIZER)
        try:
            texts = self._decoded(sequences)
        except BaseException as error:
            raise ModelFileError(TOKENIZER, f"the tokenizer cannot decode a response ({cause_of(error)}); correct its decoder") from error
        for ids, text in zip(sequences, texts, strict=True):
            _check_size(len(ids), len(text))
        return texts

    def _decoded(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """With a fast tokenizer in one call, which saves transformers' cost per text."""
        if self._backend is None:
            return [str(self._tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in sequences]
        texts: list[str] = self._backend.decode_batch(list(sequences), skip_special_tokens=True)
        return texts

    def _begin_template(self) -> str:
        self._report(self._template_file)
        return self._template_file

    def _ids(self, text: str, where: str, *, special: bool = False, framed: bool = False) -> tuple[int, ...]:
        """The text's ids; `special`: with those that begin or end a text, `framed`: of a text that `_rendered` has framed."""
        self._report(TOKENIZER)
        try:
            return self._control.encode(text, where) if framed else tuple(self._tokenizer(text, add_special_tokens=special)["input_ids"])
        except DatasetError:
            raise
        except BaseException as error:
            message = f"the tokenizer cannot encode the prompt of {where} ({cause_of(error)}); correct the tokenizer or the line"
            raise ModelFileError(TOKENIZER, message) from error


def _rest(text: str, beginning: str, where: str) -> str:
    """What follows `beginning` in `text`. Raises DatasetError for a template that changes what it has written."""
    if not text.startswith(beginning):
        raise DatasetError(
            f"the chat template writes the prompt of {where} in another way when a response follows, so the policy would learn to "
            "continue a text that it never sees; correct the template, or give prompts and responses as text"
        )
    return text[len(beginning) :]


def _stop_clock(now: datetime) -> None:
    """Makes `now` the time of every chat template of this process, so that a worker that starts on another day makes the same prompts.

    transformers has its own `strftime_now`, and drops functions that a caller gives to a template.
    """
    from transformers.utils import chat_template_utils  # noqa: PLC0415 - only a tokenizer's process has it

    vars(chat_template_utils)["datetime"] = SimpleNamespace(now=lambda: now)


def _check_size(tokens: int, characters: int) -> None:
    if characters > _MAX_CHARACTERS_PER_TOKEN * (tokens + 1):
        raise ModelFileError(TOKENIZER, f"{tokens} tokens decode to {characters} characters; correct the tokenizer's decoder")


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DatasetError(f"the prompt of {where} is no Unicode text, it holds half of a surrogate pair; correct the line") from None


def _messages(prompt: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(prompt, Sequence) or not prompt:
        raise DatasetError(f"{where}: {_KINDS}")
    for message in prompt:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise DatasetError(f"{where}: {_KINDS}")
        _check_text(message["role"] + message["content"], where)
    return [dict(message) for message in prompt]


def _stop_ids(folder: Path) -> frozenset[int]:
    """End tokens in config.json and generation_config.json."""
    stops: frozenset[int] = frozenset()
    for name in _STOP_FILES:
        if (folder / name).is_file():
            stops |= _as_ids(_file_content(folder / name).get("eos_token_id"), name)
    return stops


def _check_tokenizer_config(folder: Path) -> None:
    """Reads it as every worker will, which takes code out of it."""
    if (folder / _TOKENIZER_CONFIG).is_file():
        _file_content(folder / _TOKENIZER_CONFIG)


def _file_content(path: Path) -> dict[str, object]:
    try:
        return read_object(path)
    except ModelError as error:
        raise ModelFileError(path.name, str(error).replace(path.name, "the file", 1)) from None


def _as_ids(value: object, file: str) -> frozenset[int]:
    """Ids in an `eos_token_id`, which is absent, a number or a list."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if len(ids) > _MAX_STOP_IDS or not all(type(token) is int and 0 <= token <= _MAX_ID for token in ids):
        raise ModelFileError(file, f"eos_token_id = {str(value)[:SHOWN]}; give a token id, or a list of at most {_MAX_STOP_IDS}")
    return frozenset(ids)
