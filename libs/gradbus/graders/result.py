"""What a scorer says about one sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gradbus.v1 import reward_pb2

Status = Literal["ok", "invalid", "error"]

STATUS: Mapping[str, reward_pb2.RewardStatus] = {
    "ok": reward_pb2.REWARD_STATUS_OK,
    "invalid": reward_pb2.REWARD_STATUS_INVALID,
    "error": reward_pb2.REWARD_STATUS_ERROR,
}


@dataclass(frozen=True, slots=True)
class Result:
    """A reward with its named parts, or why there is none: a failure is not a reward of 0."""

    reward: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    status: Status = "ok"
    reason: str = ""

    @classmethod
    def invalid(cls, reason: str) -> Result:
        """The sample cannot be judged: it is masked, and never judged again."""
        return cls(status="invalid", reason=reason)

    @classmethod
    def error(cls, reason: str) -> Result:
        """The scorer failed: the sample is judged again."""
        return cls(status="error", reason=reason)

    def message(self, sample_id: str) -> reward_pb2.SampleReward:
        """The result as it travels."""
        return reward_pb2.SampleReward(
            sample_id=_sound(sample_id),
            status=STATUS[self.status],
            reward=self.reward,
            components={_sound(name): value for name, value in self.components.items()},
            reason=_sound(self.reason),
        )


def _sound(text: str) -> str:
    """`text` without lone surrogates: JSON and Python may hold them, UTF-8 and therefore protobuf cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
