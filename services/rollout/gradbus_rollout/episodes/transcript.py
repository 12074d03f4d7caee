"""What happened in an episode so far: its tokens, who wrote them, and its turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gradbus.telemetry import Interval
from gradbus.tokenizer.turns import Author, Extension
from gradbus.v1.episode_pb2 import Turn
from gradbus.v1.sample_pb2 import (
    SPAN_KIND_CLOSE,
    SPAN_KIND_FRAME,
    SPAN_KIND_POLICY,
    SPAN_KIND_TOOL,
    SPAN_KIND_USER,
    Span,
    SpanKind,
)
from gradbus_rollout.engines.base import Completion

_KINDS: Final[dict[Author, SpanKind]] = {
    "policy": SPAN_KIND_POLICY,
    "frame": SPAN_KIND_FRAME,
    "tool": SPAN_KIND_TOOL,
    "user": SPAN_KIND_USER,
    "close": SPAN_KIND_CLOSE,
}
_NO_LOGPROB: Final = bytes(4)
"""Of a token that the policy did not draw; never read."""


@dataclass(slots=True)
class Transcript:
    """The tokens after the prompt. They are only ever appended to, so a drawn token keeps its place and its log-probability."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: bytearray = field(default_factory=bytearray)
    """float32, `[T]`."""
    spans: list[Span] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    began: int = 0
    """When it drew its first token, in nanoseconds since 1970; 0 if the engine does not know."""
    ended: int = 0

    @property
    def drawn(self) -> int:
        """Number of tokens that the policy drew."""
        return sum(turn.end - turn.start for turn in self.turns)

    def draw(self, completion: Completion, seed: int) -> Turn:
        """Appends a turn of the policy, without its text."""
        start = len(self.token_ids)
        turn = Turn(start=start, end=start + len(completion.token_ids), seed=seed, finish=completion.finish)
        for span in completion.spans:
            self._add_span(start + span.start, start + span.end, span.version, "policy", trainable=True)
        self.token_ids.extend(completion.token_ids)
        self.logprobs.extend(completion.logprobs)
        self.turns.append(turn)
        self._mark(completion.times)
        return turn

    def extend(self, extension: Extension) -> None:
        """Appends what follows the newest turn of the policy."""
        start, version = len(self.token_ids), self.spans[-1].version if self.spans else 0
        for begin, end, author in extension.spans:
            self._add_span(start + begin, start + end, version, author, trainable=False)
        self.token_ids.extend(extension.token_ids)
        self.logprobs.extend(_NO_LOGPROB * len(extension.token_ids))

    def _add_span(self, start: int, end: int, version: int, author: Author, *, trainable: bool) -> None:
        turn = max(0, len(self.turns) - (0 if trainable else 1))
        self.spans.append(Span(start=start, end=end, version=version, trainable=trainable, kind=_KINDS[author], turn=turn))

    def _mark(self, times: Interval | None) -> None:
        if times is not None:
            self.began, self.ended = self.began or times[0], times[1]
