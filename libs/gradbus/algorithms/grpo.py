"""GRPO, group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300), from rewards to the coefficients of the loss.

For a prompt, G samples with rewards r_i form a group; o_i,t is token t of sample i, mu the policy that sampled it, pi the policy
that is trained and ref the base model.

    A_i,t = (r_i - mean(r)) / (std(r) + 1e-4)                                          `compute_advantages`, `token_advantages`
    rho   = pi(o_i,t) / mu(o_i,t)
    gain  = min(rho · A, clip(rho, 1 - low, 1 + high) · A)                             `loss.clip_low`, `loss.clip_high`
    k3    = ref / pi - log(ref / pi) - 1                                               `loss.kl`
    loss  = sum over all tokens of w_i,t · (kl · k3 - gain) - entropy · mean entropy   `loss.aggregate`, `loss.entropy`

The terms are computed in `gradbus_kernels.operators.policy_loss.terms`, from the inputs that the trainer's `loss_inputs` makes.
A failure is not a reward of 0: a sample without a valid reward leaves mean, deviation and token count.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradbus.algorithms.base import MAX_REWARD, GroupAdvantages, LossSettings, Needs, ScoredSample
from gradbus.spec import AlgorithmSpec
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK

STD_EPSILON = 1e-4
_VALID_SAMPLES = 2
"""With one valid sample the advantage would always be 0."""


@dataclass(frozen=True, slots=True)
class Grpo:
    """GRPO with the corrections of DAPO, Dr.GRPO and the decoupled loss, which `spec` selects one by one."""

    spec: AlgorithmSpec
    metric_names: ClassVar[Sequence[str]] = (
        "policy_loss",
        "kl",
        "entropy",
        "ratio_mean",
        "ratio_max",
        "logprob_diff",
        "clip_low",
        "clip_high",
    )

    @property
    def needs(self) -> Needs:
        """The base model's log-probabilities for a KL term alone; never a critic."""
        return Needs(reference=self.spec.kl > 0.0, values=False, valid_samples=_VALID_SAMPLES)

    @property
    def loss(self) -> LossSettings:
        """Coefficients of the loss.

        - clip: a ratio counts up to [1 - low, 1 + high] (Schulman et al. 2017, arXiv:1707.06347, equation 7); a larger high bound is
          DAPO's "clip higher" (Yu et al. 2025, arXiv:2503.14476).
        - importance: "behaviour" clips pi / mu. "decoupled" clips pi / pi_prox and multiplies by min(pi_prox / mu, 2)
          (Hilton et al. 2021, arXiv:2110.00641), where pi_prox is the policy before the step.
        - kl: coefficient of Schulman's k3 estimate (joschu.net/blog/kl-approx.html), GRPO's equation 4.
        - aggregate: w_i,t = 1 / (all trainable tokens) for "token" (DAPO), 1 / (tokens of i · samples) for "sequence" (GRPO).
        """
        spec = self.spec
        return LossSettings(
            clip_low=spec.clip[0],
            clip_high=spec.clip[1],
            importance=spec.importance,
            kl=spec.kl,
            entropy=spec.entropy,
            aggregate=spec.aggregate,
        )

    def compute_advantages(self, rewards: Sequence[ScoredSample], truncated: Sequence[bool]) -> GroupAdvantages:
        """A_i = (r_i - mean) / (std + 1e-4) over the valid samples (GRPO, section 4.1); without `normalize_std` the deviation alone
        (Dr.GRPO, Liu et al. 2025, arXiv:2503.20783).

        Exactly 0.0 for all samples when the valid rewards are equal. With `truncated = "mask"` samples that were cut off are masked.
        The advantage of a sample depends on the set of valid rewards, never on their order.
        """
        masks_truncated = self.spec.truncated == "mask"
        scores = [scored.reward for scored in rewards]
        valid = tuple(
            [
                scored.status == REWARD_STATUS_OK and abs(score) <= MAX_REWARD and not (cut and masks_truncated)
                for scored, score, cut in zip(rewards, scores, truncated, strict=True)
            ]
        )
        values = [score for score, counts in zip(scores, valid, strict=True) if counts]
        mean, std = _mean_and_std(values)
        scale = std + STD_EPSILON if self.spec.normalize_std else 1.0
        # Equality is max == min: (r - mean) of equal rewards need not vanish in floating point.
        has_signal = bool(values) and max(values) > min(values)
        advantages = tuple([(score - mean) / scale if counts and has_signal else 0.0 for score, counts in zip(scores, valid, strict=True)])
        return GroupAdvantages(valid, advantages, mean, std, self._filter_reason(len(values), len(rewards), has_signal))

    def token_advantages(self, group: GroupAdvantages, lengths: Sequence[int]) -> list[array[float]]:
        """A_i,t = A_i: every token of a sample has the sample's advantage (GRPO, outcome supervision)."""
        return [array("f", (advantage,)) * length for advantage, length in zip(group.advantages, lengths, strict=True)]

    def _filter_reason(self, valid: int, total: int, has_signal: bool) -> str:
        if valid < _VALID_SAMPLES:
            return f"{valid} of {total} samples are valid; an advantage needs two"
        if not has_signal and self.spec.filter == "zero_variance":
            return f"all {valid} valid rewards are equal"
        return ""


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1). `fsum` rounds once, so the order of values does not matter."""
    if not values:
        return 0.0, 0.0
    if max(values) == min(values):
        return values[0], 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
