"""The sequences of a sample: its own tokens, and those of the forks of its episode. All together they are one response.

Where something is given by token of a sample, log-probabilities of a frozen model for example, it is that of all its sequences, one
after the other. A run without an environment has samples of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradbus.formats.tokens import token_count
from gradbus.v1.sample_pb2 import Fork, Sample


def sequences(sample: Sample) -> Sequence[Sample | Fork]:
    """What has `token_ids`, `logprobs` and `spans` of its own, in order: the sample, unless only its forks have tokens, and each fork."""
    forks = sample.forks
    if not forks:
        return (sample,)
    return (sample, *forks) if sample.token_ids else tuple(forks)


def numbered_sequences(sample: Sample) -> Sequence[Sample | Fork]:
    """By the numbers that turns have: 0 is the sample's own, also where it has no token, k its k-th fork."""
    return (sample, *sample.forks)


def joined(sample: Sample) -> Sample:
    """The sample as if its sequences were one; the sample itself if it has no forks. What is made has no text, seed and episode."""
    if not sample.forks:
        return sample
    parts = sequences(sample)
    whole = Sample(
        sample_id=sample.sample_id,
        n=sample.n,
        token_ids=b"".join(part.token_ids for part in parts),
        logprobs=b"".join(part.logprobs for part in parts),
        finish_reason=sample.finish_reason,
    )
    before = 0
    for part in parts:
        for span in part.spans:
            whole.spans.add(start=before + span.start, end=before + span.end, version=span.version, trainable=span.trainable)
        before += token_count(part.token_ids)
    return whole
