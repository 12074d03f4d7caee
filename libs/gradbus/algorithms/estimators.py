"""The estimators of advantages: from the rewards of a group's valid samples to one number for each of them.

G valid samples have the rewards r_i, of mean m. To add an estimator: its function, a line in ESTIMATORS, and a preset that has its name
(`gradbus.spec.presets`). Sums are by `fsum`, which rounds once, so the order of the samples does not change a bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

STD_EPSILON: Final = 1e-4


@dataclass(frozen=True, slots=True)
class ValidSamples:
    """The G valid samples of a group; sequences are `[G]`."""

    rewards: Sequence[float]
    mean: float
    std: float
    """Of the rewards, ddof 1; 0.0 of fewer than two."""
    lengths: Sequence[int] = ()
    """Trainable tokens; empty unless the estimator reads them."""
    components: Sequence[Mapping[str, float]] = ()
    """Named parts of the rewards; empty unless the estimator reads them."""
    greedy: float | None = None
    """Reward of the greedy sample beside them; None if it has none, or the estimator does not read it."""

    @classmethod
    def of(
        cls,
        rewards: Sequence[float],
        lengths: Sequence[int] = (),
        components: Sequence[Mapping[str, float]] = (),
        greedy: float | None = None,
    ) -> ValidSamples:
        """The samples with these rewards."""
        return cls(rewards, *_mean_and_std(rewards), lengths, components, greedy)

    @property
    def all_equal(self) -> bool:
        """Whether the rewards are equal: then (r - mean) need not vanish in floating point."""
        return max(self.rewards) == min(self.rewards)


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator and what it needs."""

    advantages: Callable[[ValidSamples], Sequence[float]]
    formula: str
    """Of the advantage, as Markdown of docs/algorithms.md."""
    needs: str = "two"
    """Valid samples and what else, for the same table."""
    least_samples: int = 2
    """Fewest valid samples from which it says anything."""
    reads_lengths: bool = False
    reads_components: bool = False
    reads_greedy: bool = False
    """Whether the group's last sample is greedy: not trained, and the baseline of the others."""
    by_turn: bool = False
    """Whether it may compare the returns of turns: their mean is subtracted, or none."""
    by_token: bool = False
    """Whether a token's advantage is made from the rewards of its own and later tokens; otherwise all of a sample's have the same."""
    unfit: Callable[[ValidSamples], str] | None = None
    """Says why it cannot judge these samples; empty if it can."""


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1); 0.0 of no values."""
    if not values:
        return 0.0, 0.0
    if max(values) == min(values):
        return values[0], 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _group_mean(samples: ValidSamples) -> Sequence[float]:
    """r_i - m (Shao et al. 2024, arXiv:2402.03300, section 4.1, which also divides by the standard deviation)."""
    mean = samples.mean
    return [0.0] * len(samples.rewards) if samples.all_equal else [reward - mean for reward in samples.rewards]


def _leave_one_out(samples: ValidSamples) -> Sequence[float]:
    """r_i minus the mean of the others, which is G / (G - 1) · (r_i - m) (Ahmadian et al. 2024, arXiv:2402.14740, equation 7)."""
    count = len(samples.rewards)
    return [deviation * (count / (count - 1)) for deviation in _group_mean(samples)]


def _reward(samples: ValidSamples) -> Sequence[float]:
    """r_i (Williams 1992); REINFORCE++ whitens it over the step (arXiv:2501.03262), a critic takes its values from it."""
    return samples.rewards


def _greedy_baseline(samples: ValidSamples) -> Sequence[float]:
    """r_i minus the reward of the greedy sample of the same prompt (ReMax, Li et al. 2023, arXiv:2310.10505, algorithm 1)."""
    return [] if samples.greedy is None else [reward - samples.greedy for reward in samples.rewards]


def _nothing(samples: ValidSamples) -> Sequence[float]:
    """0: there are no rewards, and a teacher judges each token (arXiv:2306.13649)."""
    return [0.0] * len(samples.rewards)


def _optimal_baseline(samples: ValidSamples) -> Sequence[float]:
    """r_i - sum(l r) / sum(l), where l are the lengths (OPO, arXiv:2505.23585, equation 7)."""
    tokens = sum(samples.lengths)
    if samples.all_equal or not tokens:
        return _group_mean(samples)
    baseline = math.fsum(length * reward for length, reward in zip(samples.lengths, samples.rewards, strict=True)) / tokens
    return [reward - baseline for reward in samples.rewards]


def _quantile_baseline(samples: ValidSamples) -> Sequence[float]:
    """r_i minus the 0.4-quantile of the rewards, the least r that at least 0.4 G of them do not exceed (QAE, arXiv:2509.22611)."""
    baseline = sorted(samples.rewards)[-(-2 * len(samples.rewards) // 5) - 1]
    return [reward - baseline for reward in samples.rewards]


def _maximum_likelihood(samples: ValidSamples) -> Sequence[float]:
    """(r_i - m) / m, 0 if no reward is above 0 (MaxRL, arXiv:2602.02710)."""
    mean = samples.mean
    return [deviation / mean for deviation in _group_mean(samples)] if mean > 0.0 else [0.0] * len(samples.rewards)


def _best_of_all(samples: ValidSamples) -> Sequence[float]:
    """The best sample gets its lead over the second best, the others 0: the gradient of the expected best (arXiv:2503.19595)."""
    second, best = sorted(samples.rewards)[-2:]
    return [best - second if reward == best else 0.0 for reward in samples.rewards]


def _decoupled_components(samples: ValidSamples) -> Sequence[float]:
    """The sum over components of (c_i - mean) / (std + 1e-4) (GDPO, arXiv:2601.05242, equation 4); a constant one adds nothing."""
    normalized = []
    for name in samples.components[0]:
        part = ValidSamples.of([components[name] for components in samples.components])
        normalized.append([deviation / (part.std + STD_EPSILON) for deviation in _group_mean(part)])
    return [math.fsum(parts) for parts in zip(*normalized, strict=True)]


def _negative(samples: ValidSamples) -> str:
    least = min(samples.rewards)
    return f"a reward is {least}; `maxrl` divides by their mean and takes rewards of 0 and more" if least < 0.0 else ""


def _without_greedy(samples: ValidSamples) -> str:
    return "the greedy sample has no reward, which is the baseline of the others" if samples.greedy is None else ""


def _without_components(samples: ValidSamples) -> str:
    names = [sorted(components) for components in samples.components]
    if len(names[0]) < 2:
        return "a sample's reward has fewer than two components; `gdpo` needs two"
    if any(others != names[0] for others in names):
        return "the rewards of the samples have different components; `gdpo` needs the same for all"
    if not all(math.isfinite(value) for components in samples.components for value in components.values()):
        return "a component is not a finite number"
    return ""


ESTIMATORS: Final[Mapping[str, Estimator]] = {
    "grpo": Estimator(_group_mean, "r - m", "two valid samples", by_turn=True),
    "rloo": Estimator(_leave_one_out, "G / (G - 1) · (r - m)", by_turn=True),
    "reinforce": Estimator(_reward, "r", "one", least_samples=1, by_turn=True, by_token=True),
    "remax": Estimator(
        _greedy_baseline,
        "r - the reward of the [greedy sample](#a-greedy-baseline)",
        "one, and the greedy one",
        least_samples=1,
        reads_greedy=True,
        by_token=True,
        unfit=_without_greedy,
    ),
    "opo": Estimator(_optimal_baseline, "r - Σ l r / Σ l, where l is the number of tokens", reads_lengths=True),
    "quantile": Estimator(_quantile_baseline, "r - the least r that 0.4 G of the samples do not exceed"),
    "maxrl": Estimator(_maximum_likelihood, "(r - m) / m, 0 if m ≤ 0", "two; no reward below 0", unfit=_negative),
    "pass_k": Estimator(_best_of_all, "best - second best for the best sample, else 0"),
    "gdpo": Estimator(
        _decoupled_components,
        "Σ over components c of (c - mean) / (std + 1e-4)",
        "two; two components",
        reads_components=True,
        unfit=_without_components,
    ),
    "gae": Estimator(_reward, "by token, [from a critic's values](#ppo)", "one; a critic", least_samples=1, by_turn=True, by_token=True),
    "distill": Estimator(_nothing, "by token, [log π_T - log μ](#distillation); no rewards", "one; a teacher", least_samples=1),
}
"""By `algorithm.advantage`."""
