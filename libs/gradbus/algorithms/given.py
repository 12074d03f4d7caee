"""Given responses in place of sampled ones: nothing is judged, and a label says which way each moves the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

from gradbus.algorithms.algorithm import Algorithm
from gradbus.algorithms.base import GroupAdvantages, ScoredSample
from gradbus.algorithms.reward_kl import TokenKls
from gradbus.spec import PAIR_KINDS, Kind
from gradbus.v1.sample_pb2 import Sample

_CHOSEN: Final = 1.0
_REJECTED: Final = -1.0
_MISMATCHED: Final = 0.0
_SUPERVISED_METRICS: Final = ("entropy",)
_PREFERENCE_METRICS: Final = ("accuracy", "margin", "chosen_logprob", "rejected_logprob")
_REWARD_MODEL_METRICS: Final = ("accuracy", "margin", "chosen_score", "rejected_score")
_LABEL_METRICS: Final = ("kl", "margin", "desirable_logratio", "undesirable_logratio")
_WITH_REFERENCE: Final = ("dpo", "ipo", "kto")
"""The losses that compare the policy with the base model."""


@dataclass(frozen=True)
class GivenResponses(Algorithm):
    """The responses of a dataset row: the first is to become likelier, a second one less likely. Every group is trained.

    Of a row with a label the only response moves as the label says. The second sample is the response of another row, which is not
    trained: it shows how far the policy is from the base model.
    """

    kind: Kind = "sft"
    is_sampled: ClassVar[bool] = False

    @cached_property
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
        if self.kind == "kto":
            return _LABEL_METRICS
        return _PREFERENCE_METRICS if self.kind in PAIR_KINDS else _SUPERVISED_METRICS

    def group_advantages(
        self,
        samples: Sequence[Sample],
        rewards: Mapping[str, ScoredSample],  # noqa: ARG002
        kls: TokenKls = (),  # noqa: ARG002
    ) -> GroupAdvantages:
        """The labels in place of advantages: 1 for a response that is to become likelier, -1 for one less likely, 0 for neither."""
        second = _MISMATCHED if self.kind == "kto" else _REJECTED
        labels = tuple(second if sample.n else _REJECTED if sample.undesirable else _CHOSEN for sample in samples)
        return GroupAdvantages((True,) * len(samples), labels, 0.0, 0.0, "")
