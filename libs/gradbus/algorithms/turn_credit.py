"""Advantages of turns: what an episode gets from a turn on, compared with what the others of its group get from as many turns on.

Returns are centred, never the rewards of each turn by themselves: an episode that ends would then leave its place among those that are
compared, and going on would be paid or fined by who else goes on. With B_j,t = G_j,min(t,T_j) an ended episode keeps the return of its last
turn, so the others' part of the mean depends on no choice of the episode that is compared, and adds nothing to the expected gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from gradbus.algorithms.estimators import Estimator, ValidSamples
from gradbus.algorithms.sequences import numbered_sequences
from gradbus.formats.tokens import token_count
from gradbus.v1.sample_pb2 import Sample


class TurnStart(NamedTuple):
    """Where a turn of an episode begins, and what came before it."""

    token: int
    """Its first token, counted in those of all sequences of the sample; what stands between two turns counts to the one before."""
    number: int
    """Turns before it in its sequence, whose order is a property of the content; conversations side by side have no order of their own."""
    earned: float
    """Sum of the rewards of these turns, which it cannot change."""


def turn_starts(sample: Sample) -> Sequence[TurnStart]:
    """The turns of a sample's episode in the order of its tokens, sequence by sequence. A fork's first turn has none before it, unless it
    goes on from a turn without the thinking so far."""
    first = _first_tokens(sample)
    numbers, earned = [0] * len(first), [0.0] * len(first)
    after: list[tuple[int, float]] = []
    """Of each turn: turns up to it in its conversation, and their rewards."""
    found: list[TurnStart] = []
    for turn in sample.episode.turns:
        at = turn.sequence
        if turn.HasField("after_turn"):
            numbers[at], earned[at] = after[turn.after_turn]
        found.append(TurnStart(first[at] + turn.start, numbers[at], earned[at]))
        numbers[at] += 1
        earned[at] += turn.reward  # 0.0 if the environment gave none
        after.append((numbers[at], earned[at]))
    return sorted(found)


def trajectory_turns(sample: Sample) -> Sequence[TurnStart]:
    """The same turns as a critic estimates advantages of them, whose trajectory has the sequences one after the other.

    Before a turn is each one whose tokens come first, so the return of a token is the sum of the rewards from its turn on, and the
    difference of two neighbours is what was earned between them.
    """
    first = _first_tokens(sample)
    turns = sorted([(first[turn.sequence] + turn.start, turn.reward) for turn in sample.episode.turns])
    earned = accumulate([reward for _, reward in turns], initial=0.0)
    return [TurnStart(token, number, before) for number, ((token, _), before) in enumerate(zip(turns, earned, strict=False))]


def _first_tokens(sample: Sample) -> list[int]:
    """Where each sequence of a sample begins among the tokens of all."""
    lengths = [token_count(part.token_ids) for part in numbered_sequences(sample)]
    return list(accumulate(lengths[:-1], initial=0))


def turn_advantages(estimator: Estimator, returns: Sequence[float], turns: Sequence[Sequence[TurnStart]]) -> list[list[float]]:
    """A of each turn of a group's G valid episodes, before any division; `returns` are the sums of all their rewards, `[G]`.

    G_i,t = R_i - the rewards of the turns before it, so a scorer's reward counts as one of the last turn. A_i,t is what the estimator
    makes of G_i,t among the B_j,t of the others. With rewards at the end alone it has the bits of the episode's advantage at each turn.
    """
    paths = [
        [returned - turn.earned for turn in _first_sequence(starts)] or [returned] for returned, starts in zip(returns, turns, strict=True)
    ]
    compared: dict[int, tuple[list[float], Sequence[float]]] = {}
    found: list[list[float]] = []
    for at, (returned, starts) in enumerate(zip(returns, turns, strict=True)):
        row: list[float] = []
        for turn in starts:
            if turn.number not in compared:
                column = [path[min(turn.number, len(path) - 1)] for path in paths]
                compared[turn.number] = column, estimator.advantages(ValidSamples.of(column))
            column, advantages = compared[turn.number]
            own = returned - turn.earned
            if own != column[at]:  # of a fork: only the first sequence of an episode is compared with others
                advantages = estimator.advantages(ValidSamples.of([*column[:at], own, *column[at + 1 :]]))
            row.append(advantages[at])
        found.append(row)
    return found


def _first_sequence(starts: Sequence[TurnStart]) -> Sequence[TurnStart]:
    """The turns up to the second one that has none before it."""
    return next((starts[:at] for at, turn in enumerate(starts) if at and not turn.number), starts)
