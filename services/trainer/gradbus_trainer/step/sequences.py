"""The rows of samples of several sequences: one for each sequence, with a prompt of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gradbus.algorithms import SampleMarks, numbered_sequences
from gradbus.formats.tokens import ID_DTYPE, token_count
from gradbus.v1.sample_pb2 import Fork, Sample
from gradbus_trainer.step.batch import Origin, Rows, TrainSample


def trained_rows(rows: Sequence[tuple[TrainSample, Sample]], group: int) -> list[TrainSample]:
    """The rows of a group's samples, of which each is given with all its tokens in one."""
    if not any(sample.forks for _, sample in rows):
        return [row for row, _ in rows]
    return [part for row, sample in rows for part in _rows_of_sequences(row, sample, group)]


def _rows_of_sequences(whole: TrainSample, sample: Sample, group: int) -> list[TrainSample]:
    """A row for each sequence with a token, from one that has the tokens of all of them after the group's prompt.

    Raises ValueError for a fork without a prompt.
    """
    parts = {number: part for number, part in enumerate(numbered_sequences(sample)) if part.token_ids}
    ends = list(accumulate(token_count(part.token_ids) for part in parts.values()))
    turns, uncut = sample.episode.turns, SampleMarks(best=whole.marks.best)
    # The value after a sample that was cut off is that after its last turn, in whichever sequence that is.
    last = turns[-1].sequence if turns else max(parts)
    return [
        replace(_row(whole, part, slice(start, end)), origin=Origin(group, sample.n), marks=whole.marks if number == last else uncut)
        for (number, part), start, end in zip(parts.items(), [0, *ends], ends, strict=False)
    ]


def _row(whole: TrainSample, part: Sample | Fork, at: slice) -> TrainSample:
    return replace(
        whole,
        prompt_ids=_prompt(part) if isinstance(part, Fork) else whole.prompt_ids,
        token_ids=whole.token_ids[at],
        behaviour_logprobs=whole.behaviour_logprobs[at],
        trainable=whole.trainable[at],
        advantages=whole.advantages[at],
        reference_logprobs=_at(whole.reference_logprobs, at),
        teacher_logprobs=_at(whole.teacher_logprobs, at),
        teacher_rows=_rows_at(whole.teacher_rows, at),
        behaviour_rows=_rows_at(whole.behaviour_rows, at),
    )


def _prompt(fork: Fork) -> NDArray[np.int32]:
    if not fork.prompt_ids:
        raise ValueError("a fork of a sample has no prompt; run trainer and rollout workers of one version")
    return np.frombuffer(fork.prompt_ids, ID_DTYPE).astype(np.int32, copy=False)


def _at(values: NDArray[np.float32] | None, at: slice) -> NDArray[np.float32] | None:
    return None if values is None else values[at]


def _rows_at(rows: Rows | None, at: slice) -> Rows | None:
    return None if rows is None else (rows[0][at], rows[1][at])
