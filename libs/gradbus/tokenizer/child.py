"""A tokenizer's process: loads one model folder's tokenizer and serves its parent's requests until the stream ends.

    request                                   reply
    {"load": folder, "limits": {...},         {"stop_token_ids": [...], "context_length": tokens}
     "turns": {...} or null}
    {"encode": [[line, prompt, responses]],   {"lengths": [...]} and the ids of each prompt, followed by those of its responses;
     "check": b}                              with `check`, none
    {"decode": true, "lengths": [...]}, ids   {"texts": [...]}
    {"converse": [[[message], tools]]}        {"lengths": [...]} and the ids of each conversation
    {"parse": [["stop" | "length", tools,     {"turns": [[text, [[name, arguments, status]], kept, stop text]]}
     [stop text]]], "lengths": [...]}, ids
    {"extend": [[message]], "lengths":        {"spans": [[[start, end, author]]], "ends_thinking": [b], "lengths": [...]} and the ids after
     [...]}, the last id of each turn          each turn
    {"forget": [[[start, end]]], "lengths":   {"lengths": [...]} and the ids of each without the thinking in its turns
     [...]}, ids of sequences
    {"thinking": policy or null}              {}
    {"compare": folder}                       {"difference": text}, empty if each token has the same id in both
    {"spell": [first id, number]}             {"texts": [...], "lengths": [...]} of tokens, and the ids of each text; fewer at the last id

A message is [role, content, call id, name, [[name, arguments, call id]]], with its calls at the end. Tools are a text of JSON. A request
that fails gets {"error": text, "kind": "dataset" | "model" | "file", "file": name}. Before the reply to a load, or to
the encoding of one row, come reports {"working_on": file}: if this process is lost, its parent knows which file is to blame.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator, Sequence
from io import BufferedRWPair
from pathlib import Path
from typing import Any

from gradbus.errors import DatasetError, ModelError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.errors import ModelFileError, described, encodable
from gradbus.tokenizer.frames import Frame, read_frame
from gradbus.tokenizer.limits import limit_cpu, limit_process
from gradbus.tokenizer.loading import TOKENIZER
from gradbus.tokenizer.turns import ChatCall, ChatMessage, ParsedTurn, TurnSettings, TurnsSoFar


def serve(connection: socket.socket) -> None:
    """Serves until the parent closes its end. The process is limited before it opens any file of the model."""
    limit_process()
    stream = connection.makefile("rwb")  # closed by the end of the process alone: how it ends is known when the parent sees it closed
    child = _Child(stream)
    while (request := read_frame(stream)) is not None:
        child.reply(request)


class _Child:
    def __init__(self, stream: BufferedRWPair) -> None:
        self._stream = stream
        self._encoder: PromptEncoder | None = None
        self._folder = ""
        self._reports = False

    def reply(self, request: Frame) -> None:
        limit_cpu(request.header["seconds"])
        try:
            reply = self._answer(request).to_bytes()
        except (DatasetError, ModelError) as error:
            reply = Frame(self._fault(error)).to_bytes()
        except BaseException as error:  # noqa: BLE001 - whatever a user's files raise becomes the reply
            failure = f"the tokenizer fails ({described(error)}); save it again with `save_pretrained`"
            reply = Frame({"error": failure, "kind": "file", "file": TOKENIZER}).to_bytes()
        self._send(reply)

    def _answer(self, request: Frame) -> Frame:
        header = request.header
        if "load" in header:
            self._folder, self._reports = header["load"], True
            turns = header["turns"] and TurnSettings(**header["turns"])
            self._encoder = PromptEncoder(Path(self._folder), PromptLimits(**header["limits"]), self._report, turns)
            return Frame({"stop_token_ids": sorted(self._encoder.stop_token_ids), "context_length": self._encoder.context_length})
        if self._encoder is None:
            raise ModelError("no tokenizer is loaded; send a load first")
        if "encode" in header:
            rows: list[tuple[int, Any, list[Any]]] = header["encode"]
            self._reports = len(rows) == 1
            encoded = (ids for line, prompt, responses in rows for ids in _encoded(self._encoder, line, prompt, responses))
            return Frame.of_sequences({}, deque(encoded, maxlen=0 if header["check"] else None))
        self._reports = False
        if "compare" in header:
            return Frame({"difference": encodable(self._encoder.difference(Path(header["compare"])))})
        if "spell" in header:
            texts, ids = self._encoder.spelled(*header["spell"])
            return Frame.of_sequences({"texts": list(map(encodable, texts))}, ids)
        if "decode" in header:
            return Frame({"texts": self._encoder.decode(list(request.sequences()))})
        return self._turned(self._encoder, request)

    def _turned(self, encoder: PromptEncoder, request: Frame) -> Frame:
        """The answer to a request about turns."""
        header = request.header
        if "converse" in header:
            self._reports = len(header["converse"]) == 1
            return Frame.of_sequences({}, [encoder.encode_conversation(_messages(given), tools) for given, tools in header["converse"]])
        if "parse" in header:
            ended = zip(request.sequences(), header["parse"], strict=True)
            turns = [encoder.parse(drawn, stopped=finish == "stop", tools_json=tools, stop=stop) for drawn, (finish, tools, stop) in ended]
            return Frame({"turns": [_as_list(turn) for turn in turns]})
        if "thinking" in header:
            encoder.check_thinking(header["thinking"])
            return Frame({})
        if "forget" in header:
            so_far = [TurnsSoFar(ids, turns) for ids, turns in zip(request.sequences(), header["forget"], strict=True)]
            return Frame.of_sequences({}, [encoder.without_thinking(one) for one in so_far])
        asked = zip(request.sequences(), header["extend"], strict=True)
        found = [encoder.extension(drawn, _messages(given)) for drawn, given in asked]
        about = {"spans": [one.spans for one in found], "ends_thinking": [one.ends_thinking for one in found]}
        return Frame.of_sequences(about, [one.token_ids for one in found])

    def _report(self, file: str) -> None:
        if self._reports:
            self._send(Frame({"working_on": file}).to_bytes())

    def _fault(self, error: DatasetError | ModelError) -> dict[str, str]:
        """The error as a reply, without the folder's path on this machine."""
        if isinstance(error, ModelFileError):
            return {"error": self._shown(error.text), "kind": "file", "file": error.file}
        return {"error": self._shown(str(error)), "kind": "dataset" if isinstance(error, DatasetError) else "model"}

    def _shown(self, text: str) -> str:
        return encodable(text.replace(self._folder, "the model folder"))

    def _send(self, frame: bytes) -> None:
        self._stream.write(frame)
        self._stream.flush()


def _messages(given: Sequence[Sequence[Any]]) -> list[ChatMessage]:
    return [
        ChatMessage(role, content, call_id, name, tuple(ChatCall(*call) for call in calls)) for role, content, call_id, name, calls in given
    ]


def _as_list(turn: ParsedTurn) -> list[Any]:
    return [turn.text, [[call.name, call.arguments_json, call.status] for call in turn.calls], turn.kept, turn.stop_text]


def _encoded(encoder: PromptEncoder, line: int, prompt: object, responses: Sequence[object]) -> Iterator[tuple[int, ...]]:
    ids = encoder.encode(prompt, line)
    yield ids
    if responses:
        yield from encoder.encode_responses(prompt, responses, len(ids), line)
