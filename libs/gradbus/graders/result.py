"""The result of scoring one sample."""

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
class ScoreResult:
    """A reward with its named components, or the reason why there is none. A failure is not a reward of 0."""

    reward: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    status: Status = "ok"
    reason: str = ""
    permanent: bool = False
    """With `error`: the same would happen again; the run ends when a sample has failed so several times."""

    @classmethod
    def invalid(cls, reason: str) -> ScoreResult:
        """The sample cannot be scored: it is masked, and never scored again."""
        return cls(status="invalid", reason=reason)

    @classmethod
    def error(cls, reason: str, *, permanent: bool = False) -> ScoreResult:
        """The scorer failed: the sample is scored again. If it fails so several times and the error is `permanent`, the run ends."""
        return cls(status="error", reason=reason, permanent=permanent)

    def message(self, sample_id: str) -> reward_pb2.SampleReward:
        """The result as a protobuf message."""
        message = reward_pb2.SampleReward(sample_id=_valid_utf8(sample_id), status=STATUS[self.status], reward=self.reward)
        if self.reason:
            message.reason = _valid_utf8(self.reason)
        if self.permanent:
            message.permanent = True
        components = message.components  # filled one by one: the constructor takes three times as long to fill a map
        for name, value in self.components.items():
            components[name if name.isascii() else _valid_utf8(name)] = value
        return message


def _valid_utf8(text: str) -> str:
    """`text` without lone surrogates, which Python and JSON allow, but not UTF-8 and protobuf."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
