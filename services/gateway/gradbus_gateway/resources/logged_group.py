"""A group as the experience log holds it, and its samples as the REST interface shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property

from gradbus.algorithms import algorithm_of, numbered_sequences
from gradbus.experience.stream_ids import StreamId
from gradbus.formats.tokens import token_count, unpack_ids, unpack_logprobs
from gradbus.resources.samples import SampleResource, SampleTokens, SequenceTokens, SpanResource
from gradbus.spec import PAIR_KINDS, RunSpec
from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import SPAN_KIND_UNSPECIFIED, FinishReason, Fork, Sample, Span, SpanKind
from gradbus_gateway.resources.episodes import episode_resource
from gradbus_gateway.resources.public_text import enum_word, public_text


class LoggedGroup:
    """A group with its verdict, rewards and advantages. `entry_id` is the log's: `<milliseconds since 1970>-<serial number>`.

    Making it and a sample of it raises DecodeError, LookupError or ValueError for an entry that no conductor has written.
    """

    def __init__(self, entry_id: str, entry: LogEntry, spec: RunSpec) -> None:
        self.entry = entry
        self.group = Group.FromString(entry.group)
        self.rewards = {reward.sample_id: reward for reward in entry.rewards}
        self.admitted_at = admission_time(entry_id)
        self.step = entry.index // spec.schedule.groups_per_step if spec.schedule.has_fixed_steps else None
        self._spec = spec

    @property
    def row(self) -> int:
        """Index of the dataset row, from 0."""
        return self.group.row

    @property
    def verdict(self) -> str:
        """`train`, `filtered` or `dropped`."""
        return enum_word(Verdict.Name(self.entry.verdict), "VERDICT_")

    @property
    def numbers(self) -> list[int]:
        """Numbers of the samples in the group."""
        return [sample.n for sample in self.group.samples]

    def sample(self, at: int, *, with_tokens: bool) -> SampleResource:
        """One sample. Made one by one, because all of a group with their tokens may take a gigabyte."""
        return self._resource(at, self.group.samples[at], with_tokens)

    @cached_property
    def folded_prompt(self) -> str:
        """The prompt without regard to the case of letters: it is searched once for each sample."""
        return self.group.prompt_text.casefold()

    @cached_property
    def advantages(self) -> tuple[float | None, ...]:
        """By sample, as they are trained; None for a sample that is not, or if tokens have different ones, or the whole step makes them."""
        samples = self.group.samples
        if self.entry.verdict != VERDICT_TRAIN or any(sample.sample_id not in self.rewards for sample in samples):
            return (None,) * len(samples)
        algorithm = algorithm_of(self._spec)
        if not algorithm.has_sample_advantages:
            return (None,) * len(samples)
        kls = algorithm.token_kls(samples, self.entry.reference_logprobs)
        advantages = algorithm.group_advantages(samples, self.rewards, kls)
        return tuple(value if valid else None for value, valid in zip(advantages.advantages, advantages.valid, strict=True))

    def _resource(self, at: int, sample: Sample, with_tokens: bool) -> SampleResource:
        entry, group, reward = self.entry, self.group, self.rewards.get(sample.sample_id)
        return SampleResource(
            id=sample.sample_id,
            index=entry.index,
            row_index=group.row,
            step=self.step,
            prompt=group.prompt_text,
            text=sample.text,
            finish_reason=enum_word(FinishReason.Name(sample.finish_reason), "FINISH_REASON_"),
            reward=reward.reward if reward and reward.status == REWARD_STATUS_OK else None,
            components=dict(reward.components) if reward else {},
            reward_status=enum_word(RewardStatus.Name(reward.status), "REWARD_STATUS_") if reward else "none",
            reason=_reason(reward, entry),
            verdict=self.verdict,
            label=_label(sample, self._spec),
            advantage=self.advantages[at],
            versions=[_span(number, span) for number, part in enumerate(numbered_sequences(sample)) for span in part.spans],
            worker=group.worker,
            engine=group.engine,
            dispatched_version=entry.version,
            admitted_at=self.admitted_at,
            trace_id=group.traceparent[3:35],
            token_count=sum(token_count(part.token_ids) for part in numbered_sequences(sample)),
            episode=episode_resource(sample.episode) if sample.HasField("episode") else None,
            tokens=self._tokens(at, sample) if with_tokens else None,
        )

    def _tokens(self, at: int, sample: Sample) -> SampleTokens:
        frozen = [_logprobs(of_samples, at) for of_samples in (self.entry.reference_logprobs, self.entry.teacher_logprobs)]
        found: list[SequenceTokens] = []
        start = 0
        for part in numbered_sequences(sample):
            end = start + token_count(part.token_ids)
            found.append(
                SequenceTokens(
                    prompt_ids=list(unpack_ids(part.prompt_ids if isinstance(part, Fork) else self.group.prompt_ids)),
                    ids=list(unpack_ids(part.token_ids)),
                    logprobs=list(unpack_logprobs(part.logprobs)),
                    reference_logprobs=frozen[0][start:end],
                    teacher_logprobs=frozen[1][start:end],
                )
            )
            start = end
        return SampleTokens(**dict(found[0]), forks=found[1:])


def _span(sequence: int, span: Span) -> SpanResource:
    author = "policy" if span.kind == SPAN_KIND_UNSPECIFIED else enum_word(SpanKind.Name(span.kind), "SPAN_KIND_")
    return SpanResource(start=span.start, end=span.end, version=span.version, trainable=span.trainable, sequence=sequence, author=author)


def _logprobs(of_samples: Sequence[bytes], at: int) -> list[float]:
    """Of one sample under a frozen model; empty if the entry has none."""
    return list(unpack_logprobs(of_samples[at])) if at < len(of_samples) else []


def admission_time(entry_id: str) -> datetime:
    """When the buffer took the log entry with this id."""
    return datetime.fromtimestamp(StreamId.parse(entry_id).milliseconds / 1e3, UTC)


def _label(sample: Sample, spec: RunSpec) -> str:
    """What the dataset says of a response of it, or whether a sample is the baseline of the others."""
    kind = spec.kind
    if kind == "rl":
        return "greedy" if sample.n >= spec.rollout.group_size - algorithm_of(spec).greedy_samples else ""
    if kind in PAIR_KINDS:
        return "rejected" if sample.n else "chosen"
    if kind != "kto":
        return ""
    return "mismatched" if sample.n else "undesirable" if sample.undesirable else "desirable"


def _reason(reward: SampleReward | None, entry: LogEntry) -> str:
    return public_text((reward.reason if reward else "") or entry.reason)
