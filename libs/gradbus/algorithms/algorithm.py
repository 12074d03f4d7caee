"""An algorithm of a run: from a scored group to its verdict and its advantages.

For a prompt, G samples with the rewards r_i form a group. One estimator makes their advantages A_i; every token of a sample has its
sample's, unless a critic or a KL in the reward makes them by token. The loss of these tokens is computed in
`gradbus_kernels.operators.policy_loss`, by the same section of the spec.
A failure is not a reward of 0: a sample without a valid reward leaves mean, deviation and token count.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress
from typing import ClassVar, Final

from gradbus.algorithms.base import MAX_REWARD, SHADOW, GroupAdvantages, SampleMarks, ScoredSample, TokenAdvantage
from gradbus.algorithms.estimators import ESTIMATORS, STD_EPSILON, Estimator, ValidSamples
from gradbus.algorithms.reward_kl import TokenKls, add_teacher, returns_to_go, token_kls
from gradbus.algorithms.sequences import sequences
from gradbus.algorithms.shaping import overlong_shaped
from gradbus.algorithms.turn_credit import TurnStart, trajectory_turns, turn_advantages, turn_starts
from gradbus.ids import sample_id
from gradbus.spec import AlgorithmSpec
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, SampleReward
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, Sample

METRICS: Final = ("policy_loss", "kl", "entropy", "ratio_mean", "ratio_max", "logprob_diff", "clip_low", "clip_high")
TEACHER_METRICS: Final = ("teacher_kl",)
CRITIC_METRICS: Final = ("value_loss", "explained_variance", "critic_grad_norm")
_UNSCORED: Final = SampleReward(status=REWARD_STATUS_OK)
"""In place of the reward of a sample that no scorer judges."""


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of one run. Pure: every answer is a function of the settings and the arguments."""

    spec: AlgorithmSpec
    max_new_tokens: int
    """Most response tokens of a sample."""
    teacher_weight: float = 0.0
    """Factor of log pi_T - log mu in the advantage of a token, where pi_T is a teacher; 0 without one."""
    credits_turns: bool = False
    """Whether each turn of an episode has an advantage of its own."""
    is_sampled: ClassVar[bool] = True
    """Whether a policy sampled the responses, with log-probabilities."""

    @cached_property
    def is_scored(self) -> bool:
        """Whether a scorer judges the samples."""
        return self.spec.reads_rewards

    @cached_property
    def estimator(self) -> Estimator:
        """The estimator of advantages."""
        return ESTIMATORS[self.spec.advantage]

    @cached_property
    def greedy_samples(self) -> int:
        """How many samples of a group, its last ones, are greedy: the baseline of the others, and not trained."""
        return int(self.estimator.reads_greedy)

    @property
    def needs_reference(self) -> bool:
        """Whether the loss or the reward reads the log-probabilities of the base model."""
        return self.spec.kl > 0.0

    @cached_property
    def kl_in_reward(self) -> bool:
        """Whether the KL is taken from the reward; then the loss has no KL term."""
        return self.needs_reference and self.spec.kl_place == "reward"

    @cached_property
    def kl_by_step(self) -> bool:
        """Whether the KL is taken from the rewards of a whole step, with a coefficient of its own."""
        return self.kl_in_reward and self.spec.kl_control is not None

    @cached_property
    def needs_teacher(self) -> bool:
        """Whether the advantages read the log-probabilities of a teacher."""
        return self.teacher_weight > 0.0

    @property
    def needs_critic(self) -> bool:
        """Whether a critic makes advantages, by token, from the algorithm's: these are then the sums of the rewards from a token on."""
        return self.spec.advantage == "gae"

    @property
    def has_sample_advantages(self) -> bool:
        """Whether one number a sample is trained, that of its group: without critic, teacher, whitening, and rewards by turn or token."""
        by_token = self.needs_critic or self.credits_turns or self.needs_teacher or (self.kl_in_reward and self.estimator.by_token)
        return self.spec.whiten == "none" and not by_token

    @cached_property
    def needs_lengths(self) -> bool:
        """Whether the advantages depend on the number of response tokens."""
        return self.estimator.reads_lengths or self.spec.overlong_penalty > 0.0

    @property
    def metric_names(self) -> Sequence[str]:
        """Metrics of the loss that a step reports; see `StepMetrics.named` of the trainer."""
        spec = self.spec
        optional = {
            "kl_max": self.needs_reference,
            "outliers": spec.second_moment is not None,
            "covariance_clipped": spec.covariance_clip is not None,
            "total_variation": spec.centering is not None,
            "drift": spec.drift > 0.0,
            "nll": spec.nll > 0.0,
            "kl_coefficient": spec.kl_control is not None,
            "entropy_coefficient": spec.entropy_control is not None,
        }
        of_teacher, of_critic = TEACHER_METRICS if self.needs_teacher else (), CRITIC_METRICS if self.needs_critic else ()
        return (*METRICS, *compress(optional, optional.values()), *of_teacher, *of_critic)

    def token_kls(self, samples: Sequence[Sample], references: Sequence[bytes]) -> TokenKls:
        """What `group_advantages` and `token_advantages` read of a trained group's log-probabilities; see `reward_kl.token_kls`.

        Empty unless the KL is in the reward, and taken from it group by group.
        """
        return token_kls(samples, references) if self.kl_in_reward and not self.kl_by_step else ()

    def teacher_kls(self, samples: Sequence[Sample], teachers: Sequence[bytes]) -> TokenKls:
        """The same of a teacher's log-probabilities. Empty without a teacher."""
        return token_kls(samples, teachers) if self.needs_teacher else ()

    def group_advantages(self, samples: Sequence[Sample], rewards: Mapping[str, ScoredSample], kls: TokenKls = ()) -> GroupAdvantages:
        """The verdict and the advantages of a group; `rewards` is by sample id. Raises KeyError if a sample lacks a reward.

        The verdict does not depend on `kls`: it is made before the reference is asked.
        """
        if not self.greedy_samples:
            return self._judged(samples, rewards, kls)
        *drawn, greedy = samples
        judged = self._judged(drawn, rewards, kls[: len(drawn)], self._greedy_reward(greedy, rewards[greedy.sample_id]))
        return replace(judged, valid=(*judged.valid, False), advantages=(*judged.advantages, 0.0))

    def rewards_of(self, entry: LogEntry, group_size: int) -> Sequence[SampleReward]:
        """Those of the samples of a group, judged or not, without the greedy ones, which are the baseline of the others."""
        if not self.greedy_samples:
            return entry.rewards
        greedy = {sample_id(entry.index, n) for n in range(group_size - self.greedy_samples, group_size)}
        return [reward for reward in entry.rewards if reward.sample_id not in greedy]

    def _judged(
        self, samples: Sequence[Sample], rewards: Mapping[str, ScoredSample], kls: TokenKls, greedy: float | None = None
    ) -> GroupAdvantages:
        truncated = [sample.finish_reason == FINISH_REASON_LENGTH for sample in samples]
        lengths = [_trainable_tokens(sample) for sample in samples] if self.needs_lengths else ()
        scored = [rewards[sample.sample_id] for sample in samples] if self.is_scored else [_UNSCORED] * len(samples)
        starts_of = trajectory_turns if self.needs_critic else turn_starts
        turns = [starts_of(sample) for sample in samples] if self.credits_turns else ()
        return self.compute_advantages(scored, truncated, lengths, kls, turns, greedy)

    def _greedy_reward(self, sample: Sample, scored: ScoredSample) -> float | None:
        """As the estimator reads it, also of a sample that was cut off; None without a valid one."""
        if not _scored([scored])[0]:
            return None
        lengths = [_trainable_tokens(sample)]
        return overlong_shaped([scored.reward], lengths, self.max_new_tokens, self.spec)[0] if self.spec.overlong_penalty else scored.reward

    def compute_advantages(
        self,
        rewards: Sequence[ScoredSample],
        truncated: Sequence[bool],
        lengths: Sequence[int],
        kls: TokenKls = (),
        turns: Sequence[Sequence[TurnStart]] = (),
        greedy: float | None = None,
    ) -> GroupAdvantages:
        """The verdict and the advantages of G samples, whose order changes no bit of them.

        `truncated` says by sample whether it was cut off at `max_new_tokens`; `lengths` how many trainable tokens it has, and is read
        only with `needs_lengths`; `turns` only where these have advantages; `greedy`, the reward of the greedy sample beside them, only
        where it is their baseline. Raises ValueError when the sequences differ in length.
        """
        spec, masks_truncated = self.spec, self.spec.truncated == "mask"
        scores: Sequence[float] = [scored.reward for scored in rewards]
        valid = tuple([judged and not (cut and masks_truncated) for judged, cut in zip(_scored(rewards), truncated, strict=True)])
        if spec.overlong_penalty:
            scores = overlong_shaped(scores, lengths, self.max_new_tokens, spec)
        if kls and not self.estimator.by_token:
            scores = [score - spec.kl * math.fsum(kl) for score, kl in zip(scores, kls, strict=True)]
        samples = self._valid_samples(scores, valid, rewards, lengths, greedy)
        if reason := self._unfit(samples, len(rewards)):
            return GroupAdvantages(valid, (0.0,) * len(rewards), samples.mean, samples.std, reason)
        scale = samples.std + STD_EPSILON if spec.normalize_std else 1.0
        found = iter(self.estimator.advantages(samples))
        advantages = tuple([next(found) / scale if counts else 0.0 for counts in valid])
        by_turn = self._by_turn(samples, valid, turns, scale) if turns else ()
        judged = chain.from_iterable([part.advantage for part in row] for row in by_turn) if by_turn else advantages
        return GroupAdvantages(valid, advantages, samples.mean, samples.std, self._filter_reason(samples, list(judged)), by_turn)

    def _by_turn(
        self, samples: ValidSamples, valid: Sequence[bool], turns: Sequence[Sequence[TurnStart]], scale: float
    ) -> tuple[tuple[TokenAdvantage, ...], ...]:
        """The advantages of all turns, on the scale of those of episodes; without one if this is a deviation of 0."""
        rows = iter(turn_advantages(self.estimator, samples.rewards, list(compress(turns, valid))))
        lost = self.spec.normalize_std and not samples.std
        return tuple(
            tuple(
                TokenAdvantage(turn.token, 0.0 if lost else advantage / scale) for turn, advantage in zip(starts, next(rows), strict=True)
            )
            if counts
            else ()
            for starts, counts in zip(turns, valid, strict=True)
        )

    @cached_property
    def marks_samples(self) -> bool:
        """Whether the trainer needs `marks`; otherwise every sample is unmarked."""
        return self.spec.nll > 0.0 or self.spec.truncated == "bootstrap"

    def marks(self, samples: Sequence[Sample], rewards: Mapping[str, ScoredSample], group: GroupAdvantages) -> Sequence[SampleMarks]:
        """The marks of a group's samples, `[G]`. The best ones are the valid ones with the largest reward as the scorer gave it."""
        given = [rewards[sample.sample_id].reward if valid else 0.0 for sample, valid in zip(samples, group.valid, strict=True)]
        imitates, bootstraps, largest = self.spec.nll > 0.0, self.spec.truncated == "bootstrap", max(given)
        return [
            SampleMarks(
                best=imitates and reward > 0.0 and reward == largest,
                cut_off=bootstraps and sample.finish_reason == FINISH_REASON_LENGTH,
            )
            for sample, reward in zip(samples, given, strict=True)
        ]

    def token_advantages(
        self, group: GroupAdvantages, lengths: Sequence[int], kls: TokenKls = (), teacher_kls: TokenKls = ()
    ) -> list[array[float]]:
        """A_i,t, for each sample an array of typecode "f" (float32), `[lengths[i]]`: A_i, or by token if its rewards are.

        With a teacher, what it says of each token is added.
        """
        if kls and self.estimator.by_token:
            found = [returns_to_go(reward, kl, self.spec.kl) for reward, kl in zip(group.advantages, kls, strict=True)]
        else:
            found = [array("f", (advantage,)) * length for advantage, length in zip(group.advantages, lengths, strict=True)]
            for advantages, turns in zip(found, group.by_turn, strict=False):
                for turn in turns:
                    advantages[turn.start :] = array("f", (turn.advantage,)) * (len(advantages) - turn.start)
        if teacher_kls:
            for advantages, kl in zip(found, teacher_kls, strict=True):
                add_teacher(advantages, kl, self.teacher_weight)
        return found

    def _valid_samples(
        self,
        scores: Sequence[float],
        valid: Sequence[bool],
        rewards: Sequence[ScoredSample],
        lengths: Sequence[int],
        greedy: float | None,
    ) -> ValidSamples:
        """What the estimator reads of the valid samples."""
        read = self.estimator
        return ValidSamples.of(
            list(compress(scores, valid)),
            list(compress(lengths, valid)) if read.reads_lengths else (),
            [_trained(scored.components) for scored in compress(rewards, valid)] if read.reads_components else (),
            greedy,
        )

    def _unfit(self, samples: ValidSamples, total: int) -> str:
        """Why there are no advantages; empty if there are."""
        valid, least = len(samples.rewards), self.estimator.least_samples
        if valid < least:
            return f"{valid} of {total} samples are valid; an advantage needs {'two' if least == 2 else 'one'}"
        return self.estimator.unfit(samples) if self.estimator.unfit else ""

    def _filter_reason(self, samples: ValidSamples, advantages: Sequence[float]) -> str:
        if self.spec.filter == "none" or any(advantages):
            return ""
        return f"all {len(samples.rewards)} valid rewards are equal" if samples.all_equal else "no valid sample has an advantage"


def _scored(rewards: Sequence[ScoredSample]) -> list[bool]:
    """Whether each has a reward that may be trained on."""
    return [scored.status == REWARD_STATUS_OK and abs(scored.reward) <= MAX_REWARD for scored in rewards]


def _trained(components: Mapping[str, float]) -> dict[str, float]:
    """The components without those of shadow scorers."""
    return {name: components[name] for name in components if not name.startswith(SHADOW)}


def _trainable_tokens(sample: Sample) -> int:
    return sum(span.end - span.start for part in sequences(sample) for span in part.spans if span.trainable)
