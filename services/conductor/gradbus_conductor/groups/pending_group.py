"""A sampled group on its way to a log entry. Its message is read once, into columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradbus.algorithms import sequences
from gradbus.formats.tokens import token_count
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus.v1.reward_pb2 import SampleReward
from gradbus.v1.sample_pb2 import Sample


@dataclass(slots=True)
class PendingGroup:
    """A sampled group, and how far its judgement is."""

    group: Group
    item: str
    """The dataset row as JSON."""
    answers: dict[str, SampleReward] = field(default_factory=dict)
    """Final answers of the scorer, by sample id."""
    permanent_failures: dict[str, set[int]] = field(default_factory=dict)
    """The attempts that failed for good, by sample id; "" for those of the whole group."""
    attempts: int = 0
    """Calls that ended without a judgement."""
    calls: int = 0
    """Calls in flight."""
    entry: LogEntry | None = None
    """Set once the verdict is known."""
    index: int = field(init=False)
    """The group's index."""
    samples: Sequence[Sample] = field(init=False)
    """The group's samples: while the list holds them, protobuf does not make new objects for them at each pass."""
    ids: Sequence[str] = field(init=False)
    """Sample ids."""
    versions: Sequence[int] = field(init=False)
    """Of each sample, the oldest policy version among its trainable spans."""
    tokens: int = field(init=False)
    """Response tokens of all samples, in all their sequences."""
    characters: int = field(init=False)
    """Size of the samples in a call of the scorer."""

    def __post_init__(self) -> None:
        group, samples = self.group, list(self.group.samples)
        self.index, self.samples, default = group.index, samples, group.version
        self.ids = [sample.sample_id for sample in samples]
        self.versions = [_oldest_version(sample, default) for sample in samples]
        self.tokens = sum([token_count(part.token_ids) for sample in samples for part in sequences(sample)])
        shared = len(self.item) + len(group.prompt_text)
        self.characters = shared * len(samples) + sum([len(sample.text) for sample in samples])

    @property
    def oldest_version(self) -> int:
        """The oldest policy version among the trainable spans of all samples."""
        return min(self.versions, default=self.group.version)

    @property
    def is_answered(self) -> bool:
        """Whether the scorer has judged every sample."""
        return all(map(self.answers.__contains__, self.ids))

    @property
    def has_logprobs(self) -> bool:
        """Whether each token of the samples has its log-probability."""
        return all(len(sample.logprobs) == len(sample.token_ids) for sample in self.samples)

    def unanswered(self) -> list[int]:
        """Positions of the samples that the scorer has not judged."""
        return [n for n, sample_id in enumerate(self.ids) if sample_id not in self.answers]


def _oldest_version(sample: Sample, default: int) -> int:
    """The oldest policy version among a sample's trainable spans; `default` if it has none."""
    oldest: int | None = None
    for part in sequences(sample):
        for span in part.spans:
            if span.trainable and (oldest is None or span.version < oldest):
                oldest = span.version
    return default if oldest is None else oldest
