"""A group of the log, decoded for training. Groups are decoded while an earlier step is computed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Final

import numpy as np

from gradbus.algorithms import UNMARKED, Algorithm, joined
from gradbus.experience import StoredEntry
from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE, token_count
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_TRAIN, Group, LogEntry, TeacherRows
from gradbus.v1.reward_pb2 import SampleReward
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, Sample
from gradbus_trainer.step.batch import TrainSample
from gradbus_trainer.step.routes import count_routes, sample_routes
from gradbus_trainer.step.sequences import trained_rows

_ID: Final = np.dtype(ID_DTYPE)
_LOGPROB: Final = np.dtype(LOGPROB_DTYPE)


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """The rows of one group, and what its step reports of it. A dropped group has `lengths` alone."""

    rows: Sequence[TrainSample] = ()
    """The sequences of valid samples with a response, in order of n; empty for a group that is not trained."""
    masked: int = 0
    """Samples of a trained group that should be among the rows, and are not."""
    rewards: Sequence[SampleReward] = ()
    """Without those of samples that are the baseline of the others."""
    lengths: Sequence[int] = ()
    """Response tokens of each sample, in all its sequences."""
    truncated: int = 0
    """Samples cut off at `max_new_tokens`."""
    oldest_versions: Sequence[int | None] = ()
    """Oldest policy version of each sample's trainable spans; None for a sample without one."""
    routed: tuple[int, int] = (0, 0)
    """Tokens of the rows whose experts are the sampler's, and tokens that choose theirs; only in a run that replays routes."""


@dataclass(frozen=True, slots=True)
class LoggedGroup:
    """An entry of the log with its record's digest and its decoded group."""

    entry: LogEntry
    digest: str
    size_bytes: int
    decoded: DecodedGroup
    written: int = 0
    """When the log took it, in nanoseconds since 1970, by the buffer's clock."""

    @classmethod
    def of(cls, stored: StoredEntry, algorithm: Algorithm) -> LoggedGroup:
        """Checks and decodes a stored entry. Raises CorruptRecordError, and ValueError as `decode_group` does."""
        entry = stored.decode()
        return cls(entry, stored.digest, len(stored.record), decode_group(entry, algorithm), stored.written)

    @property
    def trains(self) -> bool:
        """Whether the group takes part in the step."""
        return self.entry.verdict == VERDICT_TRAIN


def decode_group(entry: LogEntry, algorithm: Algorithm) -> DecodedGroup:
    """The group of an entry, with the algorithm's advantages. A dropped group may hold no samples.

    Raises ValueError for a trained group whose arrays do not have one element for each token.
    """
    group = Group.FromString(entry.group)
    samples = list(group.samples)  # while the list holds them, protobuf does not make new objects for them at each pass
    wholes = [joined(sample) for sample in samples]
    token_ids = [whole.token_ids for whole in wholes]
    lengths = [token_count(content) for content in token_ids]
    if entry.verdict == VERDICT_DROPPED:
        return DecodedGroup(lengths=lengths)
    spans = [[(span.start, span.end, span.version, span.trainable) for span in whole.spans] for whole in wholes]
    trained: Sequence[tuple[TrainSample, Sample]] = ()  # all sequences of a sample in one row
    if entry.verdict == VERDICT_TRAIN:
        kls = algorithm.token_kls(samples, entry.reference_logprobs)
        teacher_kls = algorithm.teacher_kls(samples, entry.teacher_logprobs)
        rewards = {reward.sample_id: reward for reward in entry.rewards}
        judged = algorithm.group_advantages(samples, rewards, kls)
        marks = algorithm.marks(samples, rewards, judged) if algorithm.marks_samples else [UNMARKED] * len(samples)
        logprobs = _behaviour_logprobs(wholes, lengths, sampled=algorithm.is_sampled)
        nothing = [None] * len(samples)
        references = _arrays(entry.reference_logprobs, _LOGPROB, lengths) if entry.reference_logprobs else nothing
        teachers = _arrays(entry.teacher_logprobs, _LOGPROB, lengths) if entry.teacher_logprobs else nothing
        taught = _rows(entry.teacher_rows, lengths) if entry.teacher_rows else nothing
        drawn_from = _rows(entry.behaviour_rows, lengths) if entry.behaviour_rows else nothing
        (prompt,) = _arrays([group.prompt_ids], _ID, [token_count(group.prompt_ids)])
        advantages = _joined(algorithm.token_advantages(judged, lengths, kls, teacher_kls))
        routes = sample_routes(group, len(prompt), lengths)
        frozen = zip(references, teachers, taught, drawn_from, strict=True)
        columns = zip(_arrays(token_ids, _ID, lengths), logprobs, spans, advantages, routes, frozen, marks, strict=True)
        found = (
            TrainSample(
                prompt, ids, behaviour, _trainable(len(ids), parts), advantage, reference, routed, None, teacher, likely, drawn, marked
            )
            for ids, behaviour, parts, advantage, routed, (reference, teacher, likely, drawn), marked in columns
        )
        trained = [
            (row, sample) for row, sample, valid, length in zip(found, samples, judged.valid, lengths, strict=True) if valid and length
        ]
    rows = trained_rows(trained, entry.index)
    return DecodedGroup(
        rows=rows,
        masked=len(lengths) - algorithm.greedy_samples - len(trained) if entry.verdict == VERDICT_TRAIN else 0,
        rewards=algorithm.rewards_of(entry, len(samples)),
        lengths=lengths,
        truncated=[sample.finish_reason for sample in samples].count(FINISH_REASON_LENGTH),
        oldest_versions=[_oldest(parts) for parts in spans] if algorithm.is_sampled else (),
        routed=count_routes(rows) if group.HasField("routed_experts") else (0, 0),
    )


_Array = np.ndarray[Any, np.dtype[Any]]
_Spans = Sequence[tuple[int, int, int, bool]]


def _oldest(spans: _Spans) -> int | None:
    """The oldest version of the trainable spans; None without one."""
    if len(spans) == 1:
        _, _, version, trainable = spans[0]
        return version if trainable else None
    return min((version for _, _, version, trainable in spans if trainable), default=None)


def _arrays(contents: Sequence[bytes], dtype: np.dtype[Any], lengths: Sequence[int]) -> list[_Array]:
    """An array of each length, all of them views of one. Little-endian on the wire, the machine's own order in memory.

    Raises ValueError unless the contents have these lengths.
    """
    if list(map(len, contents)) != [dtype.itemsize * length for length in lengths]:
        raise ValueError("the arrays of a group do not have one element for each token; run trainer and rollout workers of one version")
    values = np.frombuffer(b"".join(contents), dtype)
    return _views(values if dtype.isnative else values.astype(dtype.newbyteorder("=")), lengths)


def _rows(rows: Sequence[TeacherRows], lengths: Sequence[int]) -> Sequence[tuple[_Array, _Array]]:
    """Ids `[T, k]` and log-probabilities `[T, k + 1]` of each sample."""
    total = max(1, sum(lengths))
    count = sum(len(row.ids) for row in rows) // (_ID.itemsize * total)
    ids = _arrays([row.ids for row in rows], _ID, [count * length for length in lengths])
    logprobs = _arrays([row.logprobs for row in rows], _LOGPROB, [(count + 1) * length for length in lengths])
    parts = zip(ids, logprobs, lengths, strict=True)
    return [(of.reshape(length, count), values.reshape(length, count + 1)) for of, values, length in parts]


def _behaviour_logprobs(samples: Sequence[Sample], lengths: Sequence[int], *, sampled: bool) -> list[_Array]:
    """Zeros for responses that no policy sampled, whose loss has no ratio."""
    if not sampled:
        return _views(np.zeros(sum(lengths), np.float32), lengths)
    return _arrays([sample.logprobs for sample in samples], _LOGPROB, lengths)


def _joined(advantages: Sequence[array[float]]) -> list[_Array]:
    """The advantages of each sample by token, all of them views of one array."""
    return _views(np.frombuffer(b"".join(advantages), np.float32), list(map(len, advantages)))


def _views(values: _Array, lengths: Sequence[int]) -> list[_Array]:
    return [values[end - length : end] for length, end in zip(lengths, accumulate(lengths), strict=True)]


def _trainable(length: int, spans: _Spans) -> _Array:
    if len(spans) == 1 and spans[0][:2] == (0, length):
        return _uniform_mask(length.bit_length(), spans[0][3])[:length]
    mask = np.zeros(length, dtype=np.bool_)
    for start, end, _, trainable in spans:
        mask[start:end] = trainable
    return mask


@cache
def _uniform_mask(bits: int, trainable: bool) -> _Array:
    """2 ** `bits` tokens: the masks of samples of one span, which is the usual case, are views of it. Read-only."""
    mask = np.full(1 << bits, trainable, dtype=np.bool_)
    mask.flags.writeable = False
    return mask
