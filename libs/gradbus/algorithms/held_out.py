"""The loss of a run on given responses over held-out rows, from what a version gives to their responses.

The formulas are those by which the trainer learns (`gradbus_kernels.operators.preference_loss`), as functions of plain numbers and without
gradients: a service that evaluates needs no torch. Tests hold the two to each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from gradbus.formats.tokens import unpack_logprobs
from gradbus.spec import PreferenceSpec, RunSpec
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus.v1.sample_pb2 import Sample

LEAST_SURPRISE: Final = 2.0**-24
"""`orpo`'s odds are of a probability of at most exp(-this), as the trainer's."""


@dataclass(frozen=True, slots=True)
class ResponseScores:
    """A response: sums over its trained tokens, in nats, or its score by a reward model."""

    tokens: int = 0
    logprob: float = 0.0
    reference: float = 0.0
    """Under the base model; 0 if the loss does not compare with it."""
    score: float = 0.0
    undesirable: bool = False

    @property
    def ratio(self) -> float:
        """Log-ratio of policy and base model."""
        return self.logprob - self.reference

    @classmethod
    def of(cls, sample: Sample, reference: bytes, score: float) -> ResponseScores:
        """Of a sample with the version's log-probabilities, or its score; `reference` are those of the base model, or empty."""
        spans = [(span.start, span.end) for span in sample.spans if span.trainable]
        tokens = sum(end - start for start, end in spans)
        return cls(tokens, _sum(sample.logprobs, spans), _sum(reference, spans), score, sample.undesirable)


Rows = Sequence[Sequence[ResponseScores]]
"""By row its responses: one, or two as a group has them."""


def held_out_loss(spec: RunSpec, entries: Iterable[LogEntry]) -> dict[str, float]:
    """`loss` over the rows, and its metrics under the names that they have in training. There must be a row."""
    rows = [_responses(entry) for entry in entries]
    if spec.kind == "sft":
        tokens = sum(row[0].tokens for row in rows)
        return {"loss": -_mean([row[0].logprob for row in rows]) * len(rows) / tokens}
    preference = spec.preference or PreferenceSpec()
    return _of_labels(rows, preference) if spec.kind == "kto" else _of_pairs(rows, preference, _PAIRS[spec.kind])


def _responses(entry: LogEntry) -> list[ResponseScores]:
    samples = Group.FromString(entry.group).samples
    scores = {reward.sample_id: reward.reward for reward in entry.rewards}
    references = entry.reference_logprobs or [b""] * len(samples)
    pairs = zip(samples, references, strict=True)
    return [ResponseScores.of(sample, reference, scores.get(sample.sample_id, 0.0)) for sample, reference in pairs]


def _of_labels(rows: Rows, preference: PreferenceSpec) -> dict[str, float]:
    mismatched = _mean([other.ratio for _, other in rows])
    kl = mismatched if math.isnan(mismatched) else max(0.0, mismatched)
    losses: list[float] = []
    ratios: dict[str, list[float]] = {"desirable": [], "undesirable": []}
    for own, _ in rows:
        ratios["undesirable" if own.undesirable else "desirable"].append(own.ratio)
        weight, sign = (preference.undesirable_weight, -1.0) if own.undesirable else (preference.desirable_weight, 1.0)
        losses.append(weight * _sigmoid(-sign * preference.beta * (own.ratio - kl)))
    means = {f"{label}_logratio": _mean(values) for label, values in ratios.items() if values}
    margin = {"margin": preference.beta * (means["desirable_logratio"] - means["undesirable_logratio"])} if len(means) == 2 else {}
    return {"loss": _mean(losses), "kl": kl, **margin, **means}


PairLoss = Callable[[ResponseScores, ResponseScores, PreferenceSpec], tuple[float, float]]
"""The loss of a pair, and its margin."""


def _of_pairs(rows: Rows, preference: PreferenceSpec, of: PairLoss) -> dict[str, float]:
    found = [of(chosen, rejected, preference) for chosen, rejected in rows]
    accuracy = _mean([margin if math.isnan(margin) else 0.5 if margin == 0.0 else float(margin > 0.0) for _, margin in found])
    return {"loss": _mean([loss for loss, _ in found]), "accuracy": accuracy, "margin": _mean([margin for _, margin in found])}


def _dpo(chosen: ResponseScores, rejected: ResponseScores, preference: PreferenceSpec) -> tuple[float, float]:
    margin, swapped = preference.beta * (chosen.ratio - rejected.ratio), preference.label_smoothing
    return (1.0 - swapped) * _surprise(margin) + swapped * _surprise(-margin), margin


def _ipo(chosen: ResponseScores, rejected: ResponseScores, preference: PreferenceSpec) -> tuple[float, float]:
    difference = chosen.ratio / chosen.tokens - rejected.ratio / rejected.tokens
    return _square(difference - 1.0 / (2.0 * preference.beta)), preference.beta * difference


def _simpo(chosen: ResponseScores, rejected: ResponseScores, preference: PreferenceSpec) -> tuple[float, float]:
    margin = preference.beta * (chosen.logprob / chosen.tokens - rejected.logprob / rejected.tokens)
    return _surprise(margin - preference.margin), margin


def _orpo(chosen: ResponseScores, rejected: ResponseScores, preference: PreferenceSpec) -> tuple[float, float]:
    means = [response.logprob / response.tokens for response in (chosen, rejected)]
    capped = [min(mean, -LEAST_SURPRISE) for mean in means]
    odds = [mean - math.log(-math.expm1(mean)) for mean in capped]
    return -means[0] + preference.beta * _surprise(odds[0] - odds[1]), preference.beta * (means[0] - means[1])


def _ranking(chosen: ResponseScores, rejected: ResponseScores, preference: PreferenceSpec) -> tuple[float, float]:
    margin = chosen.score - rejected.score
    return _surprise(margin) + preference.center * _square(chosen.score + rejected.score), margin


_PAIRS: Final[Mapping[str, PairLoss]] = {"dpo": _dpo, "ipo": _ipo, "simpo": _simpo, "orpo": _orpo, "reward_model": _ranking}


def _sum(logprobs: bytes, spans: Sequence[tuple[int, int]]) -> float:
    """Over the tokens of these spans; 0 without log-probabilities."""
    values = unpack_logprobs(logprobs)
    return math.fsum(chain.from_iterable(values[start:end] for start, end in spans))


def _surprise(value: float) -> float:
    """-log sigmoid."""
    return max(-value, 0.0) + math.log1p(math.exp(-abs(value)))


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0.0 else math.exp(value) / (1.0 + math.exp(value))


def _square(value: float) -> float:
    return value * value  # a power that is too large raises


def _mean(values: Sequence[float]) -> float:
    """NaN unless all are finite: `fsum` raises for infinities of both signs."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
