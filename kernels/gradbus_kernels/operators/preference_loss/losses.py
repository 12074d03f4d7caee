"""The losses of preference learning, by pair of a chosen response w and a rejected one l.

One function a loss; nothing else knows these formulas. A score s is of a sequence y, over its T trained tokens; s(x) is the sigmoid:

| loss | score | loss of a pair, d = score of w - score of l |
|---|---|---|
| dpo (Rafailov et al. 2023, arXiv:2305.18290, equation 7) | sum of log pi / ref | -log s(beta · d) |
| dpo with e = label_smoothing (Mitchell 2023, ericmitchell.ai/cdpo.pdf) | the same | -(1 - e) · log s(beta · d) - e · log s(-beta · d) |
| ipo (Azar et al. 2023, arXiv:2310.12036, equation 17) | mean of log pi / ref | (d - 1 / (2 · beta))² |
| simpo (Meng et al. 2024, arXiv:2405.14734) | mean of log pi | -log s(beta · d - margin) |
| orpo (Hong et al. 2024, arXiv:2403.07691, equations 6 and 7) | mean of log pi | -score of w - beta · log s(o(w) - o(l)), o the log-odds |

IPO's paper does not say how a sequence is scored. TRL has its authors' word for means (huggingface/trl#1265), and so do we.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gradbus_kernels.operators.preference_loss.inputs import PreferenceSettings

LEAST_SURPRISE: Final = 2.0**-24
"""ORPO's odds are of a probability of at most exp(-this). Float32 tells no log-probability of a softmax nearer to 0 from 0, whose odds
are infinite. Beyond it the odds have no gradient; nor does the softmax."""


class Scores(NamedTuple):
    """Scores of pairs, float64 `[B]`, in nats."""

    chosen: Tensor
    rejected: Tensor

    @property
    def difference(self) -> Tensor:
        """By how much the chosen response is the better one."""
        return self.chosen - self.rejected


def dpo(scores: Scores, settings: PreferenceSettings) -> Tensor:
    """Negative log-likelihood of the labels in the Bradley-Terry model, of which a share may be swapped."""
    logits = settings.beta * scores.difference
    swapped = settings.label_smoothing
    return -(1.0 - swapped) * logsigmoid(logits) - swapped * logsigmoid(-logits)


def ipo(scores: Scores, settings: PreferenceSettings) -> Tensor:
    """Squared distance of the difference from its target: pairs beyond the target are pulled back."""
    return (scores.difference - 1.0 / (2.0 * settings.beta)).square()


def simpo(scores: Scores, settings: PreferenceSettings) -> Tensor:
    """As DPO, without a reference and with a margin that the difference has to exceed."""
    return -logsigmoid(settings.beta * scores.difference - settings.margin)


def orpo(scores: Scores, settings: PreferenceSettings) -> Tensor:
    """Negative log-likelihood of the chosen response by token, and the odds ratio's penalty."""
    return -scores.chosen - settings.beta * logsigmoid(_log_odds(scores.chosen) - _log_odds(scores.rejected))


LOSSES: Final[Mapping[str, Callable[[Scores, PreferenceSettings], Tensor]]] = {"dpo": dpo, "ipo": ipo, "simpo": simpo, "orpo": orpo}


def _log_odds(score: Tensor) -> Tensor:
    """log(p / (1 - p)) of p = exp(score).

    `expm1` is exact where p is near 1. Where p is near 0 the logarithm is near 0 too, and rounds by less than the score does.
    """
    score = score.clamp(max=-LEAST_SURPRISE)
    return score - torch.log(-torch.expm1(score))
