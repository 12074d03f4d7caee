"""The trajectories of a micro-batch: the trainable tokens of each sample, those of its sequences one after the other.

What a value is read from is the row's own context. The estimate of an advantage sees one trajectory: a fork changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from gradbus.spec import CriticSpec
from gradbus_trainer.learners.critic.gae import Floats, generalized_advantages, policy_lambda, vtrace_corrections
from gradbus_trainer.step.batch import TrainSample, by_sample


@dataclass(frozen=True, slots=True)
class Trajectories:
    """B trajectories, with the trainable tokens of each row; arrays are float64, `[T]` each."""

    values: Sequence[Floats]
    rewards: Sequence[Floats]
    lengths: Sequence[Sequence[int]]
    log_ratios: Sequence[Floats] = ()
    """log pi0 / mu of the same tokens, with pi0 the policy before the step; empty if the rows do not have pi0."""

    @classmethod
    def of(cls, rows: Sequence[TrainSample], values: Sequence[Floats], ends: Sequence[float]) -> Trajectories:
        """Those of whole samples. `values` are by row, of its trainable tokens; `ends` has what a row's last token gets in addition.

        The rows' `advantages` are the sums of the rewards from each token on. With the discounted value after a sample that was cut off
        as its end, delta of the last token is r + gamma · V_{T+1} - V_T.
        """
        samples = by_sample(rows)
        of_row, at_end = iter(values), iter(ends)
        parts = [[next(of_row) for _ in sample] for sample in samples]
        rewards = [_token_rewards(sample, sum(next(at_end) for _ in sample)) for sample in samples]
        ratios = [np.concatenate(found) for sample in samples if (found := _log_ratios(sample))]
        return cls([np.concatenate(part) for part in parts], rewards, [list(map(len, part)) for part in parts], ratios)

    def policy_advantages(self, settings: CriticSpec) -> list[Floats]:
        """The advantages, by row."""
        return self._by_row(self._advantages(settings, [policy_lambda(settings, len(row)) for row in self.values]))

    def targets(self, settings: CriticSpec) -> list[Floats]:
        """What the values are to become, by row: the value and its advantage by `value_lambda`, or V-trace's correction of it."""
        if settings.target == "vtrace":
            rows = zip(self.values, self.rewards, self.log_ratios, strict=True)
            apart: Sequence[Floats] = [vtrace_corrections(*row, settings.value_lambda, settings.gamma) for row in rows]
        else:
            apart = self._advantages(settings, [settings.value_lambda] * len(self.values))
        return self._by_row([advantage + value for advantage, value in zip(apart, self.values, strict=True)])

    def _advantages(self, settings: CriticSpec, lambdas: Sequence[float]) -> Sequence[Floats]:
        return generalized_advantages(self.values, self.rewards, lambdas, settings.gamma)

    def _by_row(self, trajectories: Sequence[Floats]) -> list[Floats]:
        return list(chain.from_iterable(map(_divided, trajectories, self.lengths)))


def _divided(trajectory: Floats, lengths: Sequence[int]) -> Iterator[Floats]:
    return iter(np.split(trajectory, np.cumsum(lengths)[:-1]))


def _log_ratios(rows: Sequence[TrainSample]) -> list[Floats]:
    """log pi0 / mu of each row's trainable tokens; nothing without pi0."""
    return [
        (present.astype(np.float64) - row.behaviour_logprobs)[row.trainable]
        for row in rows
        if (present := row.proximal_logprobs) is not None
    ]


def _token_rewards(rows: Sequence[TrainSample], end: float) -> Floats:
    """r_t of each trainable token: a sum from it on minus the next token's."""
    sums = np.concatenate([row.advantages[row.trainable] for row in rows]).astype(np.float64)
    rewards = -np.diff(sums, append=0.0)
    if end and len(rewards):
        rewards[-1] += end
    return rewards
