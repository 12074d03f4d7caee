"""A log entry made ready for training while an earlier step is still being computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gradbus.algorithms import compute_advantages
from gradbus.spec import AlgorithmSpec
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_TRAIN, Group, LogEntry
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH
from gradbus_trainer.step.batch import TrainSample

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """What a step needs of one group."""

    rows: Sequence[TrainSample] = ()
    """Valid samples in order of n; empty for a group that is not trained."""
    masked: int = 0
    lengths: Sequence[int] = ()
    """Response tokens of each sample."""
    truncated: int = 0
    oldest_versions: Sequence[int | None] = ()
    """Of each sample's trainable spans; None for a sample without one."""


NOTHING = PreparedGroup()
"""Of a dropped group: whatever it holds takes no part in the step."""


def prepare(entry: LogEntry, algorithm: AlgorithmSpec) -> PreparedGroup:
    """Decodes and judges a group. A function of the entry and the spec."""
    if entry.verdict == VERDICT_DROPPED or not entry.group:
        return NOTHING
    group = Group.FromString(entry.group)
    truncated = [sample.finish_reason == FINISH_REASON_LENGTH for sample in group.samples]
    lengths = [len(sample.token_ids) // 4 for sample in group.samples]
    spans = [[(span.start, span.end, span.version, span.trainable) for span in sample.spans] for sample in group.samples]
    rows, masked = _rows(group, entry, algorithm, truncated, spans) if entry.verdict == VERDICT_TRAIN else ([], 0)
    return PreparedGroup(
        rows=rows,
        masked=masked,
        lengths=lengths,
        truncated=sum(truncated),
        oldest_versions=[min((version for _, _, version, trainable in parts if trainable), default=None) for parts in spans],
    )


_Spans = Sequence[tuple[int, int, int, bool]]


def _rows(
    group: Group, entry: LogEntry, algorithm: AlgorithmSpec, truncated: Sequence[bool], spans: Sequence[_Spans]
) -> tuple[list[TrainSample], int]:
    rewards = {reward.sample_id: reward for reward in entry.rewards}
    judgement = compute_advantages([rewards[sample.sample_id] for sample in group.samples], truncated, algorithm)
    prompt = _array(group.prompt_ids, _INT32)
    references = entry.reference_logprobs
    rows = [
        TrainSample(
            prompt_ids=prompt,
            token_ids=_array(sample.token_ids, _INT32),
            behaviour_logprobs=_array(sample.logprobs, _FLOAT32),
            trainable=_trainable(len(sample.token_ids) // 4, spans[n]),
            advantage=judgement.advantages[n],
            reference_logprobs=_array(references[n], _FLOAT32) if references else None,
        )
        for n, sample in enumerate(group.samples)
        if judgement.valid[n]
    ]
    return rows, judgement.valid.count(False)


def _array(content: bytes, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Little-endian on the wire, the machine's own order in memory."""
    values = np.frombuffer(content, dtype)
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def _trainable(length: int, spans: _Spans) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if len(spans) == 1 and spans[0][:2] == (0, length):
        return _whole(length, spans[0][3])
    mask = np.zeros(length, dtype=np.bool_)
    for start, end, _, trainable in spans:
        mask[start:end] = trainable
    return mask


@lru_cache(maxsize=4096)
def _whole(length: int, trainable: bool) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The mask of a sample of one span, which is most of them; shared, and never written to."""
    mask = np.full(length, trainable, dtype=np.bool_)
    mask.flags.writeable = False
    return mask
