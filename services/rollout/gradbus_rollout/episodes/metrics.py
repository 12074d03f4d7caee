"""What episodes consist of, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gradbus.telemetry import PROCESS
from gradbus.v1.sample_pb2 import SpanKind
from gradbus_rollout.episodes.transcript import Transcript


def count_episodes(transcripts: Iterable[Transcript]) -> None:
    """Adds turns, further sequences, and tokens by author."""
    turns = forks = 0
    tokens: Counter[SpanKind] = Counter()
    for transcript in transcripts:
        turns += len(transcript.turns)
        forks += max(0, len(transcript.sequences) - 1)
        for sequence in transcript.sequences:
            for span in sequence.spans:
                tokens[span.kind] += span.end - span.start
    PROCESS.count("gradbus.episode.turns", turns)
    PROCESS.count("gradbus.episode.forks", forks)
    for kind, number in tokens.items():
        PROCESS.count("gradbus.episode.tokens", number, {"gradbus.author": SpanKind.Name(kind).removeprefix("SPAN_KIND_").lower()})
