"""Which experts a token goes to, and with which shares, from the router's logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from gradbus.formats.expert_config import ExpertsConfig


class Routing:
    """The choice of a family, computed in float32 at least. A token's choice and shares depend on its own logits alone."""

    def __init__(self, experts: ExpertsConfig) -> None:
        self._scores = _SCORES[experts.family.scores]
        self._chosen = experts.chosen
        self._shared_out = _divided_by_sum if experts.renormalised else _unchanged

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of logits `[N, E]`: the experts of each token, int64 `[N, k]`, and their shares, `[N, k]`.

        Shares come from all scores at the chosen experts, so their gradients reach every logit.
        """
        scores = self._scores(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        chosen = scores.detach().topk(self._chosen, dim=-1).indices
        return chosen, self._shared_out(scores.gather(1, chosen))


def _unchanged(shares: Tensor) -> Tensor:
    return shares


def _divided_by_sum(shares: Tensor) -> Tensor:
    return shares / shares.sum(-1, keepdim=True)


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


_SCORES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"softmax": _softmax}
