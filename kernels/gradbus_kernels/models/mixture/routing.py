"""Which experts a token goes to, and with which shares, from the router's logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from gradbus.formats.expert_config import BEST_OF_GROUP, ExpertsConfig
from gradbus_kernels.models.files import check_stored, stored_corrections

_LEAST_SUM: Final = 1e-20


class Routing:
    """The choice of a family, computed in float32 at least. A token's choice and shares depend on its own logits alone."""

    def __init__(self, experts: ExpertsConfig) -> None:
        self._experts = experts
        self.correction: Tensor | None = None
        """What is added to the scores for the choice alone, float32 `[E]`. No parameter and no buffer, which a cast of the model rounds."""
        self.is_corrected = self.in_float32 = experts.family.scores == "sigmoid"
        """Whether there is such a correction, and the logits are a product in float32; else they are one in the weights' dtype."""
        self._scores = _SCORES[experts.family.scores]
        self._ranked = self._of_best_groups if experts.family.scores == "sigmoid" else _unchanged
        self._shared_out = (
            _softmax if experts.family.scores == "softmax_of_chosen" else _divided_by_sum if experts.renormalised else _unchanged
        )

    def __call__(self, logits: Tensor, routes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of logits `[N, E]`: the experts of each token, int64 `[N, k]`, and their shares, `[N, k]`.

        `routes`, int64 `[N, k]`, are experts that were chosen before (arXiv:2510.11370); a token that has -1 there is given its own choice.
        Shares come from all scores at the chosen experts, so their gradients reach every logit.
        """
        scores = self._scores(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        chosen = self._ranked(scores.detach()).topk(self._experts.chosen, dim=-1).indices
        if routes is not None:
            chosen = torch.where(routes < 0, chosen, routes)
        return chosen, self._shared_out(scores.gather(1, chosen)) * self._experts.factor

    def _of_best_groups(self, scores: Tensor) -> Tensor:
        """Corrected scores, -inf outside the groups whose two best experts have the highest (DeepSeek-V3, arXiv:2412.19437)."""
        corrected = scores if self.correction is None else scores + self.correction.to(scores.device)
        grouped = corrected.view(len(scores), self._experts.groups, -1)
        best = grouped.topk(BEST_OF_GROUP, dim=-1).values.sum(-1).topk(self._experts.chosen_groups, dim=-1).indices
        hidden = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
        return grouped.masked_fill(hidden[..., None], float("-inf")).flatten(1)


def read_corrections(folder: Path, routings: Mapping[str, Routing], device: torch.device) -> None:
    """Gives routings, by the names of their blocks (`model.layers.1.mlp`), what the folder stores of them. Raises ModelError.

    No version changes it. It is float32 for any dtype of the model.
    """
    if not any(routing.is_corrected for routing in routings.values()):
        return
    for name, tensor in stored_corrections(folder):
        if routing := routings.get(name.rsplit(".", 2)[0]):
            check_stored(name, tensor, tensor.shape)
            routing.correction = tensor.to(device, torch.float32)


def _unchanged(shares: Tensor) -> Tensor:
    return shares


def _divided_by_sum(shares: Tensor) -> Tensor:
    return shares / (shares.sum(-1, keepdim=True) + _LEAST_SUM)


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


_SCORES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"softmax": _softmax, "sigmoid": torch.sigmoid, "softmax_of_chosen": _unchanged}
