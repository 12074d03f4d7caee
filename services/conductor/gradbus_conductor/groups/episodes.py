"""What a sample's environment says of it."""

from __future__ import annotations

from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward
from gradbus.v1.sample_pb2 import Sample


def environment_answer(sample: Sample) -> SampleReward:
    """The outcome of the sample's episode: OK with its reward, or INVALID with the reason. INVALID for a sample without an episode."""
    if not sample.HasField("episode"):
        reason = "the sample has no episode; run rollout workers and conductor of one version"
        return SampleReward(sample_id=sample.sample_id, status=REWARD_STATUS_INVALID, reason=reason)
    answer = SampleReward()
    answer.CopyFrom(sample.episode.outcome)
    answer.sample_id = sample.sample_id
    return answer


def with_environment(sample: Sample, scored: SampleReward) -> SampleReward:
    """The scorer's answer with the environment's reward added to it; the environment's if the episode cannot be judged."""
    answer = environment_answer(sample)
    if answer.status != REWARD_STATUS_OK or scored.status != REWARD_STATUS_OK:
        return answer if answer.status != REWARD_STATUS_OK else scored
    joined = SampleReward(sample_id=sample.sample_id, status=REWARD_STATUS_OK, reward=answer.reward + scored.reward, reason=scored.reason)
    joined.components.update({"environment": answer.reward, "scorer": scored.reward, **answer.components, **scored.components})
    return joined
