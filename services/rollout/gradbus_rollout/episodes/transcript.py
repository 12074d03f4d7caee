"""What happened in an episode so far: its tokens, who wrote them, and its turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gradbus.telemetry import Interval
from gradbus.tokenizer.turns import Author, Extension, TurnsSoFar
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
from gradbus_rollout.tasks.generation_traces import TurnTimes

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
class TokenSequence:
    """A prompt and the tokens after it. They are only ever appended to, so a drawn token keeps its place and its log-probability."""

    prompt_ids: tuple[int, ...]
    """`[P]`"""
    tools_json: str = ""
    """The tools that its conversation brings; empty: those of the run."""
    turns_before: tuple[tuple[int, int], ...] = ()
    """[start, end) of turns that were drawn elsewhere, and stand in the prompt as they were drawn."""
    after_turn: int | None = None
    """The turn that it goes on from without the thinking so far; None: it begins by itself."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: bytearray = field(default_factory=bytearray)
    """float32, `[T]`."""
    spans: list[Span] = field(default_factory=list)

    @property
    def context(self) -> tuple[int, ...]:
        """All of its ids `[P + T]`."""
        return (*self.prompt_ids, *self.token_ids)

    def __len__(self) -> int:
        """Tokens with the prompt's."""
        return len(self.prompt_ids) + len(self.token_ids)

    def draw(self, completion: Completion, number: int) -> None:
        """Appends the policy's turn `number` of the episode."""
        start = len(self.token_ids)
        for span in completion.spans:
            self._add_span((start + span.start, start + span.end), "policy", span.version, number)
        self.token_ids.extend(completion.token_ids)
        self.logprobs.extend(completion.logprobs)

    def extend(self, extension: Extension, number: int) -> None:
        """Appends what follows turn `number`, its newest one."""
        start, version = len(self.token_ids), self.spans[-1].version if self.spans else 0
        for begin, end, author in extension.spans:
            self._add_span((start + begin, start + end), author, version, number)
        self.token_ids.extend(extension.token_ids)
        self.logprobs.extend(_NO_LOGPROB * len(extension.token_ids))

    def cut(self, end: int) -> None:
        """Removes the tokens from `end` on, where a span begins."""
        del self.token_ids[end:], self.logprobs[4 * end :]
        self.spans = [span for span in self.spans if span.start < end]

    def _add_span(self, at: tuple[int, int], author: Author, version: int, turn: int) -> None:
        start, end = at
        self.spans.append(Span(start=start, end=end, version=version, trainable=author == "policy", kind=_KINDS[author], turn=turn))


@dataclass(slots=True)
class Transcript:
    """All turns of an episode, and the sequences that they are in. Most episodes have one."""

    sequences: list[TokenSequence] = field(default_factory=list)
    """Each has a turn."""
    turns: list[Turn] = field(default_factory=list)
    times: list[TurnTimes] = field(default_factory=list)
    """Of the turns that were answered."""
    began: int = 0
    """When it drew its first token, in nanoseconds since 1970; 0 if the engine does not know."""
    ended: int = 0

    @property
    def drawn(self) -> int:
        """Number of tokens that the policy drew."""
        return sum(turn.end - turn.start for turn in self.turns)

    def draw(self, sequence: TokenSequence, completion: Completion, seed: int) -> Turn:
        """Appends a turn of the policy, without its text, to a sequence: the newest one, an older one or a new one."""
        place = next((at for at, known in enumerate(self.sequences) if known is sequence), len(self.sequences))
        if place == len(self.sequences):
            self.sequences.append(sequence)
        start = len(sequence.token_ids)
        sequence.draw(completion, len(self.turns))
        turn = Turn(start=start, end=len(sequence.token_ids), seed=seed, finish=completion.finish, sequence=place)
        if not start and sequence.after_turn is not None:
            turn.after_turn = sequence.after_turn
        self.turns.append(turn)
        self._mark(completion.times)
        return turn

    def extended(self, number: int, extension: Extension) -> TokenSequence:
        """The sequence in which the policy goes on after turn `number`: that turn's own, unless something follows it there already."""
        turn = self.turns[number]
        sequence = self.sequences[turn.sequence]
        if turn.end == len(sequence.token_ids):
            sequence.extend(extension, number)
            return sequence
        before = self.up_to(number)
        return TokenSequence((*before.token_ids, *extension.token_ids), sequence.tools_json, before.turns)

    def rewritten(self, number: int, extension: Extension, before: tuple[int, ...]) -> TokenSequence:
        """As `extended`, in a new sequence, with the ids `[T]` of `before` in place of those up to the end of turn `number`."""
        sequence = self.sequences[self.turns[number].sequence]
        return TokenSequence((*before, *extension.token_ids), sequence.tools_json, after_turn=number)

    def take_back(self, sequence: TokenSequence) -> None:
        """Removes what follows the sequence's newest turn: what was asked after it is not asked any more."""
        place = next((at for at, known in enumerate(self.sequences) if known is sequence), None)
        if place is not None:
            sequence.cut(max(turn.end for turn in self.turns if turn.sequence == place))

    def length_to(self, number: int) -> int:
        """Tokens of `up_to(number)`, which it does not make: an episode that goes on asks for them after each turn."""
        turn = self.turns[number]
        return len(self.sequences[turn.sequence].prompt_ids) + turn.end

    def up_to(self, number: int) -> TurnsSoFar:
        """The sequence of turn `number` up to its end."""
        last = self.turns[number]
        sequence = self.sequences[last.sequence]
        shift = len(sequence.prompt_ids)
        turns = [turn for turn in self.turns if turn.sequence == last.sequence and turn.end <= last.end]
        ids = (*sequence.prompt_ids, *sequence.token_ids[: last.end])
        return TurnsSoFar(ids, (*sequence.turns_before, *((shift + turn.start, shift + turn.end) for turn in turns)))

    def drawn_in(self, turn: Turn) -> tuple[int, ...]:
        """The ids `[T]` of a turn."""
        return tuple(self.sequences[turn.sequence].token_ids[turn.start : turn.end])

    def _mark(self, times: Interval | None) -> None:
        if times is not None:
            self.began, self.ended = self.began or times[0], times[1]
