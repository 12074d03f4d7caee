"""The sequences of a sample: its own tokens, and those of the forks of its episode. All together they are one response.

Where something is given by token of a sample, log-probabilities of a frozen model for example, it is that of all its sequences, one
after the other. A run without an environment has samples of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradbus.formats.tokens import token_count
from gradbus.v1.sample_pb2 import Fork, Sample

SpanColumns = tuple[int, int, int, bool]
"""Start, end, version and `trainable` of a span."""


def sequences(sample: Sample) -> Sequence[Sample | Fork]:
    """What has `token_ids`, `logprobs` and `spans` of its own, in order: the sample, unless only its forks have tokens, and each fork."""
    forks = sample.forks
    if not forks:
        return (sample,)
    return (sample, *forks) if sample.token_ids else tuple(forks)


def all_token_ids(sample: Sample) -> bytes:
    """The token ids of all sequences, little-endian int32."""
    parts = sequences(sample)
    return parts[0].token_ids if len(parts) == 1 else b"".join(part.token_ids for part in parts)


def all_logprobs(sample: Sample) -> bytes:
    """The log-probabilities of all sequences, little-endian float32."""
    parts = sequences(sample)
    return parts[0].logprobs if len(parts) == 1 else b"".join(part.logprobs for part in parts)


def all_spans(sample: Sample) -> list[SpanColumns]:
    """The spans of all sequences, counted in the tokens of all of them."""
    found: list[SpanColumns] = []
    before = 0
    for part in sequences(sample):
        found += [(before + span.start, before + span.end, span.version, span.trainable) for span in part.spans]
        before += token_count(part.token_ids)
    return found
