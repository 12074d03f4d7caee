"""The loss of a reward model on pairs, given the scores of their responses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gradbus_kernels.operators.base.arguments import check_floats, require


class RankingLoss(NamedTuple):
    """The loss of an update, with its statistics: float64 scalars, means over the pairs. All but `total` is detached."""

    total: Tensor
    """To be differentiated."""
    chosen: Tensor
    """Score of the chosen response."""
    rejected: Tensor
    accuracy: Tensor
    """Share of pairs whose chosen response has the higher score; equal scores count one half."""


def ranking_loss(scores: Tensor, center: float = 0.0) -> RankingLoss:
    """-log sigmoid(s_w - s_l) + center · (s_w + s_l)², the mean over B pairs.

    Bradley and Terry 1952, as Ouyang et al. 2022 (arXiv:2203.02155, equation 1) train reward models. The second term (Eisenstein et
    al. 2023, arXiv:2312.09244) keeps scores around 0, of which only differences count. `scores` are float `[2 · B]`: the chosen
    response's of pair b at 2 · b, the rejected one's after it. Raises ValueError for an odd number of scores, for none, and for a
    negative `center`.
    """
    check_floats("scores", scores, (None,))
    require(len(scores) > 0 and len(scores) % 2 == 0, "scores", f"are {len(scores)}; pass two for each pair, at least one pair")
    require(center >= 0.0, "center", f"is {center}; pass 0 or more")
    chosen, rejected = scores.double().view(-1, 2).unbind(1)
    total = (-logsigmoid(chosen - rejected) + center * (chosen + rejected).square()).mean()
    margins = (chosen - rejected).detach()
    accuracy = torch.heaviside(margins, margins.new_tensor(0.5)).mean()
    return RankingLoss(total, chosen.detach().mean(), rejected.detach().mean(), accuracy)
