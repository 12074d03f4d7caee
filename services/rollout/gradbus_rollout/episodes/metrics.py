"""What episodes consist of, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from gradbus.algorithms import numbered_sequences
from gradbus.telemetry import PROCESS
from gradbus.v1.sample_pb2 import Sample, SpanKind


def count_episodes(samples: Iterable[Sample]) -> None:
    """Adds turns, forks, and tokens by author."""
    turns = forks = 0
    tokens: Counter[SpanKind] = Counter()
    for sample in samples:
        turns += len(sample.episode.turns)
        forks += len(sample.forks)
        for span in chain.from_iterable(sequence.spans for sequence in numbered_sequences(sample)):
            tokens[span.kind] += span.end - span.start
    PROCESS.count("gradbus.episode.turns", turns)
    PROCESS.count("gradbus.episode.forks", forks)
    for kind, number in tokens.items():
        PROCESS.count("gradbus.episode.tokens", number, {"gradbus.author": SpanKind.Name(kind).removeprefix("SPAN_KIND_").lower()})
