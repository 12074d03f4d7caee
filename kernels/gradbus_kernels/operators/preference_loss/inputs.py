"""The inputs of the preference loss: its settings, and the response tokens of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_floats, require

_LOSSES: Final = ("dpo", "ipo", "simpo", "orpo")


@dataclass(frozen=True, slots=True)
class PreferenceSettings:
    """The variant of the loss; see the table of `losses`. Raises ValueError for settings that do not go together."""

    loss: Literal["dpo", "ipo", "simpo", "orpo"] = "dpo"
    beta: float = 0.1
    """Factor of the rewards. For "ipo" it is the paper's tau, and for "orpo" the weight lambda of the odds ratio."""
    margin: float = 0.5
    """Target reward margin gamma of "simpo", in units of the reward: it is not multiplied by beta. The other losses do not read it."""
    label_smoothing: float = 0.0
    """Share of the labels that is taken to be swapped (conservative DPO), in [0, 0.5); "dpo" only."""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the policy with a reference model; then `PairTokens.reference_logprobs` must be given."""
        return self.loss in {"dpo", "ipo"}

    @property
    def uses_means(self) -> bool:
        """Whether a sequence is scored by the mean over its trained tokens, not by their sum."""
        return self.loss != "dpo"

    def __post_init__(self) -> None:
        require(self.loss in _LOSSES, "loss", f"is {self.loss!r}; pass one of {', '.join(_LOSSES)}")
        require(0.0 < self.beta < math.inf, "beta", f"is {self.beta}; pass a positive number")
        require(0.0 <= self.margin < math.inf, "margin", f"is {self.margin}; pass 0 or more")
        require(0.0 <= self.label_smoothing < 0.5, "label_smoothing", f"is {self.label_smoothing}; pass a share from 0 to below 0.5")
        require(
            self.loss == "dpo" or not self.label_smoothing,
            "label_smoothing",
            f'is {self.label_smoothing} and "{self.loss}" has none; pass 0, or loss "dpo"',
        )


@dataclass(frozen=True, slots=True)
class KtoSettings:
    """The loss on labelled responses; see `kto_loss`. Raises ValueError for settings that do not go together."""

    loss: ClassVar[Literal["kto"]] = "kto"
    needs_reference: ClassVar[bool] = True
    """As `PreferenceSettings.needs_reference`."""
    beta: float = 0.1
    """Factor of a response's log-ratio."""
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        require(0.0 < self.beta < math.inf, "beta", f"is {self.beta}; pass a positive number")
        for name in ("desirable_weight", "undesirable_weight"):
            require(0.0 <= getattr(self, name) < math.inf, name, f"is {getattr(self, name)}; pass 0 or more")


@dataclass(frozen=True, slots=True)
class PairTokens:
    """N response tokens of 2 · B sequences, each whole: pair b is the sequences 2 · b and 2 · b + 1, chosen and rejected."""

    sequences: Tensor
    """int64 `[N]`: the number, from 0 on, of the sequence that each token is of, in order."""
    trained: Tensor
    """bool `[N]`: the tokens that count. The others may hold anything, NaN too."""
    pairs: int
    """Pairs of the whole update: the loss is the sum over this micro-batch's pairs, divided by it."""
    reference_logprobs: Tensor | None = None
    """Log-probabilities under the reference model, float `[N]`; needed when `PreferenceSettings.needs_reference`."""

    def sums(self, values: Tensor, size: int) -> Tensor:
        """Sums of float64 `[N]` over the trained tokens of each sequence, `[size]`."""
        return values.new_zeros(size).index_add(0, self.sequences, values.where(self.trained, 0.0))

    def check(self, logprobs: Tensor, settings: PreferenceSettings | KtoSettings) -> None:
        """Raises ValueError with the name of a part that is missing or does not fit `logprobs`."""
        check_floats("logprobs", logprobs, (None,))
        count = len(logprobs)
        for name, dtype, part in (("sequences", torch.int64, self.sequences), ("trained", torch.bool, self.trained)):
            fits = (part.dtype, part.shape, part.device) == (dtype, (count,), logprobs.device)
            given = f"is {part.dtype} {tuple(part.shape)} on {part.device}"
            require(fits, f"tokens.{name}", f"{given}; pass {dtype} ({count},) on {logprobs.device}, like logprobs")
        if self.reference_logprobs is not None:
            check_floats("tokens.reference_logprobs", self.reference_logprobs, (count,), logprobs)
        require(
            self.reference_logprobs is not None or not settings.needs_reference,
            "tokens.reference_logprobs",
            f'are missing and "{settings.loss}" needs them; start the reference service, or choose "simpo" or "orpo"',
        )

    def counts(self) -> Tensor:
        """Trained tokens of each sequence, int64 `[2 · B]`. Synchronises with a GPU.

        Raises ValueError unless the sequences are pairs in order, no more than `pairs`, and each has a trained token.
        """
        ids = self.sequences
        steps = ids.diff()
        ordered = not len(ids) or (int(ids[0]) == 0 and bool(((steps == 0) | (steps == 1)).all()))
        require(ordered, "tokens.sequences", "are not 0, 1, 2 and so on in order; pass the tokens sequence by sequence and leave none out")
        size = int(ids[-1]) + 1 if len(ids) else 0
        even = f"hold {size} sequences, an odd number; pass whole pairs, each a chosen and then a rejected response"
        require(size % 2 == 0, "tokens.sequences", even)
        few = f"is {self.pairs} and there are {size // 2} here; pass the number of pairs of the whole update"
        require(self.pairs >= max(1, size // 2), "tokens.pairs", few)
        counts = torch.zeros(size, dtype=torch.int64, device=ids.device).index_add(0, ids, self.trained.long())
        empty = (counts == 0).nonzero().flatten().tolist()
        require(not empty, "tokens.trained", f"is False for all tokens of sequences {empty[:8]}; leave their pairs out of the update")
        return counts
