"""The inputs of the policy loss: its settings, and the response tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_floats, require

_CHOICES: Final = {
    "trust_region": ("clip", "log_clip", "cap", "band", "mass", "soft", "gamma", "none"),
    "importance": ("behaviour", "decoupled", "none"),
    "ratio": ("token", "sequence", "product"),
    "kl_estimator": ("k2", "k3", "unbiased"),
}
_SEQUENCE_REGIONS: Final = ("clip", "log_clip", "gamma", "none")


@dataclass(frozen=True, slots=True)
class Curves:
    """Numbers of the trust regions that fade in place of a bound, for positive advantages and for the others.

    Raises ValueError for numbers that are not positive.
    """

    temperatures: tuple[float, float] = (1.0, 1.05)
    """Of "soft"."""
    gamma: tuple[tuple[float, float], tuple[float, float]] = ((2.0, 3.0), (3.0, 2.0))
    """k and lambda of "gamma", by which the weight is largest at a ratio of k / lambda."""

    def __post_init__(self) -> None:
        require(min(self.temperatures) > 0.0, "temperatures", f"are {self.temperatures}; pass two positive numbers")
        require(min(map(min, self.gamma)) > 0.0, "gamma", f"is {self.gamma}; pass two pairs of positive numbers")


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The variant of the loss; see the tables of `terms` and `trust_region`. Raises ValueError for settings that do not go together."""

    trust_region: Literal["clip", "log_clip", "cap", "band", "mass", "soft", "gamma", "none"] = "clip"
    """What a token gains as the policy moves: a function of `trust_region`."""
    low: float = 0.2
    high: float = 0.2
    """"clip", "cap" and "band" bound the ratio to [1 - low, 1 + high], so that low = 1 is no lower bound; "mass" bounds the change in
    probability, by high where the advantage is positive and by low where it is negative, and "log_clip" so the log-ratio, in nats."""
    dual: float | None = None
    """Bound c > 1 of "clip" where the advantage is negative: the gain is at least c · A. Without effect up to a ratio of c."""
    curves: Curves = Curves()
    """Of "soft" and "gamma"."""
    importance: Literal["behaviour", "decoupled", "none"] = "behaviour"
    """"behaviour" bounds pi / mu. "decoupled" (Hilton et al. 2021, arXiv:2110.00641) bounds pi / pi_prox, where pi_prox is the
    policy before this step, and multiplies by min(pi_prox / mu, 2); see `PolicyTokens.proximal_logprobs`. "none" has no ratio and so
    no bound: the gain is A · log pi (REINFORCE). Masks and the unbiased KL look at pi / mu whatever is chosen."""
    ratio: Literal["token", "sequence", "product"] = "token"
    """"sequence" takes one ratio a sequence, the geometric mean of its trained tokens' (GSPO); "product" their product (RLOO)."""
    sequence_mask: tuple[float, float] | None = None
    """A sequence gains nothing if its geometric mean of pi / mu is not within these bounds; its weights do not change."""
    off_policy_mask: float | None = None
    """A token with a negative advantage gains nothing if the mean of log mu / pi over its sequence is above this
    (off-policy sequence masking, DeepSeek-V3.2, arXiv:2512.02556)."""
    kl: float = 0.0
    """Coefficient of the KL to the base model."""
    kl_estimator: Literal["k2", "k3", "unbiased"] = "k3"
    """See the table of `divergence`."""
    drift: float = 0.0
    """Coefficient of (log pi / mu)² by token, which no trust region and no mask leaves out."""
    nll: float = 0.0
    """Coefficient of -log pi of the tokens with `PolicyTokens.nll_weights`."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    allow_nan: bool = False
    """Lets NaN through to loss and gradients, for a caller that checks these; otherwise NaN is an error."""

    @property
    def needs_sequences(self) -> bool:
        """Whether a token's part depends on the other tokens of its sequence; then `PolicyTokens.sequences` must say which these are."""
        return self.ratio != "token" or self.sequence_mask is not None or self.off_policy_mask is not None

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            given = getattr(self, name)
            require(given in known, name, f"is {given!r}; pass one of {', '.join(known)}")
        require(-self.low <= self.high, "high", f"is {self.high} and low is {self.low}; pass bounds in their order")
        require(self.dual is None or self.dual > 1.0, "dual", f"is {self.dual}; pass a number above 1, or None")
        require(self.dual is None or self.trust_region == "clip", "dual", f'bounds "clip" alone; pass None with "{self.trust_region}"')
        whole = " or ".join(_SEQUENCE_REGIONS)
        message = f'is "{self.ratio}" and "{self.trust_region}" is of single tokens; pass "token", or trust_region {whole}'
        require(self.ratio == "token" or self.trust_region in _SEQUENCE_REGIONS, "ratio", message)
        self._check_masks()

    def _check_masks(self) -> None:
        least, most = self.sequence_mask or (1.0, 1.0)
        require(0.0 <= least <= 1.0 <= most, "sequence_mask", f"is {self.sequence_mask}; pass bounds around a ratio of 1")
        require((self.off_policy_mask or 0.0) >= 0.0, "off_policy_mask", f"is {self.off_policy_mask}; pass 0 or more nats, or None")


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
    """int64 `[N]`: the number, from 0 on, of the sequence that each token is of; needed when `PolicySettings.needs_sequences`."""
    proximal_logprobs: Tensor | None = None
    """Log-probabilities under pi_prox, which only "decoupled" reads. None: pi_prox is the policy itself, as in a step's first update."""
    nll_weights: Tensor | None = None
    """Share of the token in the mean of -log pi; needed when its coefficient is not 0. 0 for a token that is not used."""

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
        message = "are missing and the term of -log pi needs them; pass each token's share in it, or set `nll` to 0"
        require(self.nll_weights is not None or not settings.nll, "tokens.nll_weights", message)
        if settings.needs_sequences:
            fits = self.sequences is not None and self.sequences.dtype == torch.int64 and self.sequences.shape == (count,)
            require(fits, "tokens.sequences", f"a ratio or a mask of whole sequences needs each token's sequence; pass int64 ({count},)")

    def _parts(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))
