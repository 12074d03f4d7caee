"""A group as the experience log holds it, and its samples as the REST interface shows them."""

from __future__ import annotations

from datetime import UTC, datetime

from gradbus.algorithms import algorithm_of, group_advantages
from gradbus.experience.stream_ids import StreamId
from gradbus.formats.tokens import token_count, unpack_ids, unpack_logprobs
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Sample
from gradbus_gateway.resources.samples import SampleResource, SampleTokens, SpanResource


class LoggedGroup:
    """A group with its verdict, rewards and advantages. `entry_id` is the log's: `<milliseconds since 1970>-<serial number>`."""

    def __init__(self, entry_id: str, entry: LogEntry, spec: RunSpec) -> None:
        self.entry = entry
        self.group = Group.FromString(entry.group)
        self.rewards = {reward.sample_id: reward for reward in entry.rewards}
        self.admitted_at = datetime.fromtimestamp(StreamId.parse(entry_id).milliseconds / 1e3, UTC)
        self.step = entry.index // spec.schedule.groups_per_step if spec.schedule.mode == "fixed_lag" else None
        self.advantages = self._advantages(spec)
        """By sample; None for a sample that is not trained."""

    @property
    def row(self) -> int:
        """Index of the dataset row, from 0."""
        return self.group.row

    def samples(self, *, with_tokens: bool) -> list[tuple[int, SampleResource]]:
        """(number in the group, sample), in order."""
        return [(sample.n, self._resource(at, sample, with_tokens)) for at, sample in enumerate(self.group.samples)]

    def _advantages(self, spec: RunSpec) -> tuple[float | None, ...]:
        samples = self.group.samples
        if self.entry.verdict != VERDICT_TRAIN or any(sample.sample_id not in self.rewards for sample in samples):
            return (None,) * len(samples)
        advantages = group_advantages(algorithm_of(spec.algorithm), samples, self.rewards)
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
            finish_reason=_enum_word(FinishReason.Name(sample.finish_reason), "FINISH_REASON_"),
            reward=reward.reward if reward and reward.status == REWARD_STATUS_OK else None,
            components=dict(reward.components) if reward else {},
            reward_status=_enum_word(RewardStatus.Name(reward.status), "REWARD_STATUS_") if reward else "none",
            reason=_reason(reward, entry),
            verdict=_enum_word(Verdict.Name(entry.verdict), "VERDICT_"),
            advantage=self.advantages[at],
            versions=[
                SpanResource(start=span.start, end=span.end, version=span.version, trainable=span.trainable) for span in sample.spans
            ],
            worker=group.worker,
            engine=group.engine,
            dispatched_version=entry.version,
            admitted_at=self.admitted_at,
            trace_id=group.traceparent[3:35],
            token_count=token_count(sample.token_ids),
            tokens=self._tokens(at, sample) if with_tokens else None,
        )

    def _tokens(self, at: int, sample: Sample) -> SampleTokens:
        references = self.entry.reference_logprobs
        return SampleTokens(
            ids=list(unpack_ids(sample.token_ids)),
            logprobs=list(unpack_logprobs(sample.logprobs)),
            reference_logprobs=list(unpack_logprobs(references[at])) if at < len(references) else [],
        )


def _reason(reward: SampleReward | None, entry: LogEntry) -> str:
    return (reward.reason if reward else "") or entry.reason


def _enum_word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
