"""Which samples a search selects, told from the log's own records: most are passed over without being shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query
from pydantic import AfterValidator

from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus_gateway.resources.logged_group import LoggedGroup

Text = Annotated[
    str,
    AfterValidator(str.casefold),
    Query(max_length=200, description="Only samples with this in their prompt, response or reason; in any case of letters."),
]
VerdictWord = Annotated[Literal["train", "filtered", "dropped"] | None, Query(description="Only samples of groups with this verdict.")]
MinReward = Annotated[float | None, Query(allow_inf_nan=False, description="Only samples with a reward of at least this.")]
MaxReward = Annotated[float | None, Query(allow_inf_nan=False, description="Only samples with a reward of at most this.")]


@dataclass(frozen=True, slots=True)
class SampleSearch:
    """Parameters of a query. Every condition that is set must hold."""

    text: Text = ""
    """Without regard to the case of letters: folded once, when the query is read."""
    verdict: VerdictWord = None
    min_reward: MinReward = None
    max_reward: MaxReward = None

    @property
    def selects_all(self) -> bool:
        """Whether no condition is set."""
        return self == SampleSearch()

    def finds(self, group: LoggedGroup, at: int) -> bool:
        """Whether the group's sample at this place is selected."""
        sample = group.group.samples[at]
        reward = group.rewards.get(sample.sample_id)
        value = reward.reward if reward is not None and reward.status == REWARD_STATUS_OK else None
        if (self.verdict is not None and self.verdict != group.verdict) or not self._in_range(value):
            return False
        texts = (sample.text, reward.reason if reward else "", group.entry.reason)
        return not self.text or self.text in group.folded_prompt or any(self.text in text.casefold() for text in texts)

    def _in_range(self, reward: float | None) -> bool:
        """A sample without a reward is in no range of rewards."""
        if reward is None:
            return self.min_reward is None and self.max_reward is None
        return (self.min_reward is None or reward >= self.min_reward) and (self.max_reward is None or reward <= self.max_reward)
