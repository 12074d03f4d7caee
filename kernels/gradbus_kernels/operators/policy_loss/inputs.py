"""The inputs of the policy loss: its settings, and the response tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_floats, require

_CHOICES: Final = {"importance": ("behaviour", "decoupled"), "objective": ("clip", "cispo"), "level": ("token", "sequence")}


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The variant of the loss; see the table of `terms`."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    """A ratio stays in [1 - clip_low, 1 + clip_high]; CISPO uses the upper bound alone."""
    importance: Literal["behaviour", "decoupled"] = "behaviour"
    """"behaviour" clips pi / mu. "decoupled" (Hilton et al. 2021, arXiv:2110.00641) clips pi / pi_prox, where pi_prox is the
    policy before this step, and multiplies by min(pi_prox / mu, 2)."""
    objective: Literal["clip", "cispo"] = "clip"
    """"cispo" multiplies the log-probability by the clipped ratio, which has no gradient."""
    level: Literal["token", "sequence"] = "token"
    """"sequence" takes one ratio a sequence, the geometric mean of its tokens' (GSPO)."""
    kl: float = 0.0
    """Coefficient of the k3 KL to the base model."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    allow_nan: bool = False
    """Lets NaN through to loss and gradients, for a caller that checks these; otherwise NaN is an error."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            given = getattr(self, name)
            require(given in known, name, f"is {given!r}; pass one of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class PolicyTokens:
    """N response tokens; floats are `[N]`. A token whose weights are both 0 is not used, and may hold anything, NaN too."""

    behaviour_logprobs: Tensor
    """Log-probabilities under the policy that sampled them."""
    advantages: Tensor
    weights: Tensor
    """Share of the token in the step's mean; 0 for tokens that are not trained."""
    entropy_weights: Tensor
    """1 / (trainable tokens of the step); 0 for tokens that are not trained."""
    reference_logprobs: Tensor | None = None
    """Log-probabilities under the base model; needed when the KL coefficient is not 0."""
    sequences: Tensor | None = None
    """int64 `[N]`: the number, from 0 on, of the sequence that each token is of; needed for `level="sequence"`."""

    @property
    def used(self) -> Tensor:
        """Tokens with a weight, bool `[N]`."""
        return (self.weights != 0.0) | (self.entropy_weights != 0.0)

    def at(self, rows: Tensor | slice) -> PolicyTokens:
        """The tokens at `rows`."""
        return PolicyTokens(*(None if part is None else part[rows] for part in self._parts()))  # type: ignore[arg-type]

    def check(self, count: int, settings: PolicySettings, like: Tensor) -> None:
        """Raises ValueError with the name of a part that is missing or does not fit `count` tokens on the device of `like`."""
        for field, part in zip(fields(self), self._parts(), strict=True):
            if part is not None and field.name != "sequences":
                check_floats(f"tokens.{field.name}", part, (count,), like)
        require(
            self.reference_logprobs is not None or not settings.kl,
            "tokens.reference_logprobs",
            "are missing and the KL term needs them; start the reference service or set the KL coefficient to 0",
        )
        if settings.level == "sequence":
            fits = self.sequences is not None and self.sequences.dtype == torch.int64 and self.sequences.shape == (count,)
            require(fits, "tokens.sequences", f'level="sequence" needs the number of each token\'s sequence; pass int64 ({count},)')

    def _parts(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))
