"""A group of the log, decoded for training. Groups are decoded while an earlier step is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from gradbus.algorithms import Algorithm, group_advantages
from gradbus.experience import StoredEntry
from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE, token_count
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_TRAIN, Group, LogEntry
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, Sample
from gradbus_trainer.step.batch import TrainSample

_ID: Final = np.dtype(ID_DTYPE)
_LOGPROB: Final = np.dtype(LOGPROB_DTYPE)


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """The rows of one group, and what its step reports of it. A dropped group has `lengths` alone."""

    rows: Sequence[TrainSample] = ()
    """Valid samples in order of n; empty for a group that is not trained."""
    masked: int = 0
    """Samples of a trained group that are not among the rows."""
    lengths: Sequence[int] = ()
    """Response tokens of each sample."""
    truncated: int = 0
    """Samples cut off at `max_new_tokens`."""
    oldest_versions: Sequence[int | None] = ()
    """Oldest policy version of each sample's trainable spans; None for a sample without one."""


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
        """Checks and decodes a stored entry. Raises CorruptRecordError."""
        entry = stored.decode()
        return cls(entry, stored.digest, len(stored.record), decode_group(entry, algorithm), stored.written)

    @property
    def trains(self) -> bool:
        """Whether the group takes part in the step."""
        return self.entry.verdict == VERDICT_TRAIN


def decode_group(entry: LogEntry, algorithm: Algorithm) -> DecodedGroup:
    """The group of an entry, with the algorithm's advantages. A dropped group may hold no samples."""
    group = Group.FromString(entry.group)
    samples = list(group.samples)  # while the list holds them, protobuf does not make new objects for them at each pass
    lengths = [token_count(sample.token_ids) for sample in samples]
    if entry.verdict == VERDICT_DROPPED:
        return DecodedGroup(lengths=lengths)
    spans = [[(span.start, span.end, span.version, span.trainable) for span in sample.spans] for sample in samples]
    rows: Sequence[TrainSample] = ()
    if entry.verdict == VERDICT_TRAIN:
        judged = group_advantages(algorithm, samples, {reward.sample_id: reward for reward in entry.rewards})
        advantages = [np.frombuffer(values, np.float32) for values in algorithm.token_advantages(judged, lengths)]
        masks = [_trainable(length, parts) for length, parts in zip(lengths, spans, strict=True)]
        rows = _rows(group.prompt_ids, samples, entry, judged.valid, advantages, masks)
    return DecodedGroup(
        rows=rows,
        masked=len(lengths) - len(rows) if entry.verdict == VERDICT_TRAIN else 0,
        lengths=lengths,
        truncated=[sample.finish_reason for sample in samples].count(FINISH_REASON_LENGTH),
        oldest_versions=[min((version for _, _, version, trainable in parts if trainable), default=None) for parts in spans],
    )


_Array = np.ndarray[Any, np.dtype[Any]]
_Spans = Sequence[tuple[int, int, int, bool]]


def _rows(
    prompt_ids: bytes,
    samples: Sequence[Sample],
    entry: LogEntry,
    valid: Sequence[bool],
    advantages: Sequence[_Array],
    masks: Sequence[_Array],
) -> Sequence[TrainSample]:
    prompt = _array(prompt_ids, _ID)
    references = entry.reference_logprobs
    return [
        TrainSample(
            prompt_ids=prompt,
            token_ids=_array(sample.token_ids, _ID),
            behaviour_logprobs=_array(sample.logprobs, _LOGPROB),
            trainable=masks[n],
            advantages=advantages[n],
            reference_logprobs=_array(references[n], _LOGPROB) if references else None,
        )
        for n, sample in enumerate(samples)
        if valid[n]
    ]


def _array(content: bytes, dtype: np.dtype[Any]) -> _Array:
    """Little-endian on the wire, the machine's own order in memory."""
    values = np.frombuffer(content, dtype)
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def _trainable(length: int, spans: _Spans) -> _Array:
    if len(spans) == 1 and spans[0][:2] == (0, length):
        return _uniform_mask(length, spans[0][3])
    mask = np.zeros(length, dtype=np.bool_)
    for start, end, _, trainable in spans:
        mask[start:end] = trainable
    return mask


@lru_cache(maxsize=4096)
def _uniform_mask(length: int, trainable: bool) -> _Array:
    """The mask of a sample of one span, which is the usual case; shared and read-only."""
    mask = np.full(length, trainable, dtype=np.bool_)
    mask.flags.writeable = False
    return mask
