"""The tokenizer of one run: calls its process, and replaces a process that is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from gradbus.errors import DatasetError, ModelError
from gradbus.spec import RunSpec, Thinking
from gradbus.telemetry import get_logger
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.errors import ModelFileError, TokenizerProcessError
from gradbus.tokenizer.frames import Frame
from gradbus.tokenizer.launcher import ForkServer
from gradbus.tokenizer.loading import TOKENIZER
from gradbus.tokenizer.process import ProcessLostError, TokenizerProcess
from gradbus.tokenizer.turns import (
    ChatConversation,
    ChatMessage,
    DrawnTurn,
    Extension,
    ParsedCall,
    ParsedTurn,
    TurnAnswer,
    TurnSettings,
    TurnsSoFar,
)

_log = get_logger(__name__)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds of the processor that a call may take."""

    load: float
    call: float


@dataclass(frozen=True, slots=True)
class _CallSize:
    """What one call takes, so that it is far from its deadline and from the limit of a frame."""

    items: int
    total: int


_PROMPTS: Final = _CallSize(items=64, total=256 << 10)  # bytes of JSON
_RESPONSES: Final = _CallSize(items=1024, total=16 << 10)  # tokens
_TOKEN_BYTES: Final = 16
_MOST_SAID_BYTES: Final = 4 << 20
"""Which a call encodes long before its deadline; a lost process would be the fault of the model's files."""
_SPELLED: Final = 1024
"""Tokens whose texts one call makes."""
_TURNS: Final = _CallSize(items=1024, total=_TOKEN_BYTES << 14)  # as many tokens as of responses, or bytes of tools


@dataclass(frozen=True, slots=True)
class NumberedPrompt:
    """A prompt of a dataset, with its line."""

    line: int
    prompt: object
    responses: Sequence[object] = ()
    """Of a dataset that gives them."""
    label: bool | None = None
    """Whether the response is a desirable one; only of a dataset with labels."""
    item: str = ""
    """The row as a JSON object; only of a run with an environment."""


def limits_of(spec: RunSpec, submitted_unix_ns: int | None = None) -> PromptLimits:
    """The limits of a run; with given responses a prompt leaves room for one token, and each row is measured as a whole."""
    rollout = spec.rollout
    room = 1 if spec.trains_given else rollout.max_new_tokens
    return PromptLimits(room, rollout.max_prompt_tokens, rollout.stop_token_ids, submitted_unix_ns)


class Tokenizer:
    """The tokenizer and chat template of a model folder, in a process of their own.

    A call whose process is lost is made once more in a new process, because a process may be killed from outside. A second loss is
    the fault of the model's files, and so is a first one for too much work.
    """

    def __init__(
        self, server: ForkServer, folder: Path, limits: PromptLimits, deadlines: Deadlines, turns: TurnSettings | None = None
    ) -> None:
        self._server = server
        self._deadlines = deadlines
        self._loading = {"load": str(folder), "limits": asdict(limits), "turns": turns and asdict(turns)}
        self._process: TokenizerProcess | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self.stop_token_ids: frozenset[int] = frozenset()
        """The run's stop ids and the model's, once it is loaded."""
        self.context_length = 0
        """Tokens that fit the model, once it is loaded."""

    @classmethod
    async def open(
        cls, server: ForkServer, folder: Path, limits: PromptLimits, deadlines: Deadlines, turns: TurnSettings | None = None
    ) -> Tokenizer:
        """The tokenizer, loaded; with `turns`, for a run with an environment.

        Raises ModelError, also for a chat template that cannot go on after a turn, and TokenizerProcessError if this machine cannot run it.
        """
        tokenizer = cls(server, folder, limits, deadlines, turns)
        try:
            async with tokenizer._lock:
                await tokenizer._loaded()
        except BaseException:
            await tokenizer.close()
            raise
        return tokenizer

    async def encode(self, prompts: Sequence[NumberedPrompt]) -> list[tuple[int, ...]]:
        """Token ids `[P]` of each prompt, followed by those of its responses, `[T]` each.

        Raises DatasetError, naming the line, and ModelError for files that fail on a prompt.
        """
        encoded: list[tuple[int, ...]] = []
        for part in _parts(prompts, _bytes, _PROMPTS):
            encoded += await self._encoded(part)
        return encoded

    async def check(self, prompts: Sequence[NumberedPrompt]) -> None:
        """Encodes the prompts and keeps nothing: their ids may take gigabytes. Raises as `encode` does."""
        for part in _parts(prompts, _bytes, _PROMPTS):
            await self._encoded(part, check=True)

    async def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Text of each response, without special tokens. Raises ModelError for a tokenizer that fails on one."""
        distinct, texts = list(dict.fromkeys(map(tuple, sequences))), list[str]()
        for part in _parts(distinct, len, _RESPONSES):
            request = Frame.of_sequences({"decode": True}, part)
            reply = await _repeated(partial(self._request, request), "responses cannot be decoded")
            texts += reply.header["texts"]
        text_of = dict(zip(distinct, texts, strict=True))
        return [text_of[tuple(sequence)] for sequence in sequences]

    async def conversations(self, given: Sequence[ChatConversation]) -> list[tuple[int, ...]]:
        """Token ids `[P]` of each conversation that an environment begins, or in which an agent asks, up to where the policy draws.

        Raises DatasetError for messages that the chat template or the context does not take, and ModelError for files that fail on them.
        Those of an agent may be longer than the context, and what files cannot do with them is a DatasetError.
        """
        encoded: list[tuple[int, ...]] = []
        asked = [(_as_lists(one.messages), one.tools_json) for one in given]
        _check_said(asked)
        for part in _parts(asked, _json_bytes, _PROMPTS):
            request = Frame({"converse": part})
            reply = await _repeated(partial(self._request, request), "a conversation cannot be encoded")
            encoded += reply.sequences()
        return encoded

    async def parse(self, turns: Sequence[DrawnTurn]) -> list[ParsedTurn]:
        """Text and calls of turns that the policy drew; nothing is a call in one that ended by "length" before a stop text.

        Raises ModelError for a tokenizer that fails on one.
        """
        parsed: list[ParsedTurn] = []
        for part in _parts(turns, _drawn_size, _TURNS):
            header = {"parse": [(turn.finish, turn.tools_json, turn.stop) for turn in part]}
            request = Frame.of_sequences(header, [turn.token_ids for turn in part])
            reply = await _repeated(partial(self._request, request), "turns cannot be parsed")
            turns_of_part = reply.header["turns"]
            parsed += [ParsedTurn(text, tuple(ParsedCall(*call) for call in calls), *stopped) for text, calls, *stopped in turns_of_part]
        return parsed

    async def extend(self, answers: Sequence[TurnAnswer]) -> list[Extension]:
        """The ids that follow each turn, up to where the policy draws again; no id that was drawn is made again.

        Raises ModelError for messages that the chat template does not take after that turn; for an agent's, DatasetError.
        """
        extended: list[Extension] = []
        asked = [(answer.drawn[-1:], _as_lists(answer.messages)) for answer in answers]
        _check_said(asked)
        for part in _parts(asked, _json_bytes, _PROMPTS):
            request = Frame.of_sequences({"extend": [messages for _, messages in part]}, [drawn for drawn, _ in part])
            reply = await _repeated(partial(self._request, request), "messages after a turn cannot be encoded")
            spans = [tuple((start, end, author) for start, end, author in of_one) for of_one in reply.header["spans"]]
            extended += map(Extension, reply.sequences(), spans, reply.header["ends_thinking"])
        return extended

    async def without_thinking(self, given: Sequence[TurnsSoFar]) -> list[tuple[int, ...]]:
        """The ids `[T]` of each sequence without the thinking in its turns; what is left of a turn are ids that were drawn.

        Raises ModelError for a tokenizer that fails on one.
        """
        found: list[tuple[int, ...]] = []
        for part in _parts(given, lambda one: len(one.token_ids), _RESPONSES):
            request = Frame.of_sequences({"forget": [one.turns for one in part]}, [one.token_ids for one in part])
            reply = await _repeated(partial(self._request, request), "thinking cannot be taken out of turns")
            found += reply.sequences()
        return found

    async def check_thinking(self, policy: Thinking | None) -> None:
        """Raises ModelError if the policy does not fit the chat template, as far as that is known without the run's tools."""
        await _repeated(partial(self._request, Frame({"thinking": policy})), "the chat template cannot be tried")

    async def difference(self, folder: Path) -> str:
        """How the tokenizer in another folder differs: the first token with another id; empty if none has. Raises as `open` does."""
        request = Frame({"compare": str(folder)})
        reply = await _repeated(partial(self._request, request, self._deadlines.load), "the tokenizers cannot be compared")
        return str(reply.header["difference"])

    async def spelled(self, first: int) -> list[tuple[str, tuple[int, ...]]]:
        """The texts of some tokens from an id on, each with its ids; none from the last id on. Raises as `open` does."""
        reply = await _repeated(partial(self._request, Frame({"spell": [first, _SPELLED]})), "the tokens cannot be written")
        return list(zip(reply.header["texts"], reply.sequences(), strict=True))

    async def close(self) -> None:
        """Ends the process. Nothing of the model computes or holds memory afterwards."""
        self._closed = True
        if self._process is not None:
            await self._process.end()

    async def _encoded(self, prompts: Sequence[NumberedPrompt], *, check: bool = False) -> list[tuple[int, ...]]:
        try:
            return await self._encode(prompts, check=check)
        except ProcessLostError as error:
            if error.too_much_work and len(prompts) == 1:
                raise _blamed(error, f"the prompt of line {prompts[0].line} cannot be encoded") from error
            _note(error)
        encoded: list[tuple[int, ...]] = []
        for one in prompts:  # one by one, so that a second loss names the line
            try:
                encoded += await self._encode([one], check=check)
            except ProcessLostError as error:
                raise _blamed(error, f"the prompt of line {one.line} cannot be encoded") from error
        return encoded

    async def _encode(self, prompts: Sequence[NumberedPrompt], *, check: bool) -> list[tuple[int, ...]]:
        rows = [(given.line, given.prompt, list(given.responses)) for given in prompts]
        reply = await self._request(Frame({"encode": rows, "check": check}))
        return list(reply.sequences())

    async def _request(self, request: Frame, seconds: float | None = None) -> Frame:
        async with self._lock:
            process = await self._loaded()
            return _checked(await process.call(request, seconds or self._deadlines.call))

    async def _loaded(self) -> TokenizerProcess:
        """The process, if it is alive, or a new one that has loaded the tokenizer."""
        if not self._closed and (self._process is None or not self._process.alive):
            self._process = await _repeated(self._load, "the tokenizer cannot be loaded")
            if self._closed:  # meanwhile
                await self._process.end()
        if self._closed or self._process is None:
            raise TokenizerProcessError("the tokenizer is closed; open another one")
        return self._process

    async def _load(self) -> TokenizerProcess:
        process = await TokenizerProcess.start(self._server)
        try:
            reply = _checked(await process.call(Frame(self._loading), self._deadlines.load))
        except BaseException:
            await process.end()
            raise
        self.stop_token_ids = frozenset(reply.header["stop_token_ids"])
        self.context_length = int(reply.header["context_length"])
        return process


async def _repeated(work: Callable[[], Awaitable[_Result]], what: str) -> _Result:
    """The result of `work`, which is called once more if its process is lost, unless for too much work."""
    try:
        return await work()
    except ProcessLostError as error:
        if error.too_much_work:
            raise _blamed(error, what) from error
        _note(error)
    try:
        return await work()
    except ProcessLostError as error:
        raise _blamed(error, what) from error


def _checked(reply: Frame) -> Frame:
    """The reply; raises the error in it."""
    header = reply.header
    if "error" not in header:
        return reply
    match header["kind"]:
        case "dataset":
            raise DatasetError(header["error"])
        case "file":
            raise ModelFileError(header["file"], header["error"])
    raise ModelError(header["error"])


def _note(error: ProcessLostError) -> None:
    _log.warning("tokenizer_lost", cause=str(error), file=error.file)


def _blamed(error: ProcessLostError, what: str) -> ModelFileError:
    """The error of the file that the process worked on."""
    file = error.file or TOKENIZER
    return ModelFileError(file, f"{what}: {error}; simplify the {'tokenizer' if file == TOKENIZER else 'chat template'}")


def _bytes(given: NumberedPrompt) -> int:
    return _json_bytes([given.prompt, *given.responses])


def _as_lists(messages: Sequence[ChatMessage]) -> list[tuple[object, ...]]:
    return [(message.role, message.content, message.call_id, message.name, [*map(astuple, message.calls)]) for message in messages]


def _json_bytes(given: object) -> int:
    return len(json.dumps(given))


def _check_said(given: Sequence[object]) -> None:
    """Raises DatasetError if the messages of one of them are too long for a call."""
    if (size := max(map(_json_bytes, given), default=0)) > _MOST_SAID_BYTES:
        raise DatasetError(f"the messages have {size} bytes, at most {_MOST_SAID_BYTES} are encoded; let them say less")


def _drawn_size(given: DrawnTurn) -> int:
    return _TOKEN_BYTES * len(given.token_ids) + len(given.tools_json)


def _parts(items: Sequence[_Item], size_of: Callable[[_Item], int], call: _CallSize) -> Iterator[Sequence[_Item]]:
    """Consecutive items in parts of the size of one call; an item that is larger makes a part alone."""
    start, total = 0, 0
    for n, size in enumerate(map(size_of, items)):  # as each part is asked for: to measure a dataset's rows takes a second
        if n > start and (total + size > call.total or n - start == call.items):
            yield items[start:n]
            start, total = n, 0
        total += size
    if items:
        yield items[start:]
