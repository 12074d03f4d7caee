"""Given responses in place of sampled ones: nothing is judged, and a label says which way each moves the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from gradbus.algorithms.algorithm import Algorithm
from gradbus.algorithms.base import GroupAdvantages, ScoredSample
from gradbus.algorithms.reward_kl import TokenKls
from gradbus.spec import PAIR_KINDS, Kind
from gradbus.v1.sample_pb2 import Sample

_CHOSEN: Final = 1.0
_REJECTED: Final = -1.0
_SUPERVISED_METRICS: Final = ("entropy",)
_PREFERENCE_METRICS: Final = ("accuracy", "margin", "chosen_logprob", "rejected_logprob")
_REWARD_MODEL_METRICS: Final = ("accuracy", "margin", "chosen_score", "rejected_score")
_WITH_REFERENCE: Final = ("dpo", "ipo")
"""The losses that compare the policy with the base model."""


@dataclass(frozen=True)
class GivenResponses(Algorithm):
    """The responses of a dataset row: the first is to become likelier, a second one less likely. Every group is trained."""

    kind: Kind = "sft"
    is_sampled: ClassVar[bool] = False

    @property
    def is_scored(self) -> bool:
        """See `Algorithm`."""
        return False

    @property
    def needs_reference(self) -> bool:
        """See `Algorithm`."""
        return self.kind in _WITH_REFERENCE

    @property
    def metric_names(self) -> Sequence[str]:
        """See `Algorithm`."""
        if self.kind == "reward_model":
            return _REWARD_MODEL_METRICS
        return _PREFERENCE_METRICS if self.kind in PAIR_KINDS else _SUPERVISED_METRICS

    def group_advantages(
        self,
        samples: Sequence[Sample],
        rewards: Mapping[str, ScoredSample],  # noqa: ARG002
        kls: TokenKls = (),  # noqa: ARG002
    ) -> GroupAdvantages:
        """The labels in place of advantages: 1 for the first response, -1 for a second one."""
        labels = tuple(_REJECTED if sample.n else _CHOSEN for sample in samples)
        return GroupAdvantages((True,) * len(samples), labels, 0.0, 0.0, "")
