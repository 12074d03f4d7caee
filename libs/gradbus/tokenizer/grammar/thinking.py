"""The ids of turns without the policy's thinking. What is left of a turn are ids that were drawn: nothing is encoded again."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from gradbus.tokenizer.control_tokens import ControlTokens
from gradbus.tokenizer.grammar.parsers.tagged import OPEN as CALL
from gradbus.tokenizer.grammar.thinking_probe import THOUGHT, TRIMS, ThinkingRule

_NOTHING: Final = 0


class Thinking:
    """Takes the thinking out of turns by one rule."""

    def __init__(self, rule: ThinkingRule, control: ControlTokens, written: Callable[[Sequence[int]], str]) -> None:
        """`written` gives the text of ids, with special tokens."""
        self.rule = rule
        self._written = written
        self._trim = TRIMS[rule.trim]
        self._opening, self._instead = (tuple(control.encoding(control.frame(text)).ids) for text in (rule.opening, rule.instead))

    def taken_out(self, ids: Sequence[int], turns: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """The ids `[T]` of a sequence without the thinking in its turns, which are at [start, end)."""
        kept: list[int] = []
        at = 0
        for start, end in turns:
            before, turn = tuple(ids[at:start]), ids[start:end]
            thought = self._length(turn)
            opened = len(self._opening) if self._opening and before[-len(self._opening) :] == self._opening else 0
            kept += before[: len(before) - opened]
            kept += (*self._instead, *turn[thought:]) if thought else turn
            at = end
        return (*kept, *ids[at:])

    def _length(self, turn: Sequence[int]) -> int:
        """Tokens of a turn up to its answer; none if it does not end its thinking, or one token holds that end and the answer's beginning.

        Its thinking ends with the last `</think>` before its first call, where templates divide a message. Calls in it are none.
        """
        text = self._written(turn)
        first = text.find(THOUGHT)
        if first < 0:
            return _NOTHING
        call = text.find(CALL, first)
        end = text.rfind(THOUGHT, first, call if call >= 0 else len(text)) + len(THOUGHT)
        begin = len(text) - len(self._trim(text[end:]))
        count = bisect_left(range(len(turn)), True, key=lambda length: self._written(turn[:length]).startswith(text[:end]))
        if len(self._written(turn[:count])) > begin:
            return _NOTHING
        # By halving, as above: a policy may draw thousands of spaces, and each look decodes the whole beginning.
        return bisect_right(range(len(turn) + 1), begin, lo=count, key=lambda length: len(self._written(turn[:length]))) - 1
