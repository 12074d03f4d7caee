"""The hidden states that a critic reads on one rank: of the policy, which the ranks share, or of a model that each rank holds whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradbus.spec import RunSpec
from gradbus_trainer.learners.critic.gae import Floats
from gradbus_trainer.learners.critic.states import ModelStates
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.learners.deepspeed.shares import pieces_of, rows_before
from gradbus_trainer.step.batch import Batch, TrainSample

PolicyStates = Callable[[Sequence[TrainSample]], Tensor]
"""The policy's hidden states before the samples' response tokens, `[R, H]`. All ranks call it together."""


class RankStates:
    """Every method is called on all ranks, in the same order."""

    def __init__(self, spec: RunSpec, ranks: Ranks, width: int, source: PolicyStates | ModelStates) -> None:
        """`source`: the policy's states of size `width`, or those of a model of the critic's own."""
        self._spec, self._ranks, self._source = spec, ranks, source
        self.width = width

    @property
    def device(self) -> torch.device:
        """See `HiddenStates`."""
        return self._ranks.device

    @property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """See `HiddenStates`."""
        return self._source.trained if isinstance(self._source, ModelStates) else {}

    @property
    def held(self) -> Sequence[Tensor]:
        """See `HiddenStates`."""
        return self._source.held if isinstance(self._source, ModelStates) else []

    def micro_batches(self, batch: Batch) -> Sequence[Sequence[TrainSample]]:
        """See `HiddenStates`. Idle pieces end the share of a rank that has fewer, because the policy's pass is a collective."""
        pieces = pieces_of(batch, self._spec, self._ranks.rank, self._ranks.size, whole_samples=True)
        return [piece.samples for piece in pieces]

    def hidden(self, samples: Sequence[TrainSample]) -> Tensor:
        """See `HiddenStates`."""
        if isinstance(self._source, ModelStates):
            return self._source.hidden(samples)
        with torch.no_grad():
            return self._source(samples)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """See `HiddenStates`. What no rank has a gradient of has none afterwards, so that it stays as it is."""
        every = list(parameters)
        has = torch.tensor([int(parameter.grad is not None) for parameter in every])
        self._ranks.sum(has)
        for parameter in (parameter for parameter, ranks in zip(every, has.tolist(), strict=True) if ranks):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self._ranks.sum(gradient)
            parameter.grad = gradient

    def of_all_rows(self, batch: Batch, rows: Sequence[Floats]) -> list[Floats]:
        """See `HiddenStates`."""
        return joined(self._ranks, batch, np.concatenate(rows), batch.trainable_counts)


def joined(ranks: Ranks, batch: Batch, own: NDArray[Any], lengths: Sequence[int]) -> list[Floats]:
    """What all ranks found for each row of the batch, float64 `[length]` each; `own` is what this one did, and then of idle pieces.

    A number has one summand that is not 0, so it keeps its bits. Ranks have whole samples.
    """
    begin, end = (sum(lengths[: rows_before(batch, ranks.rank + after, ranks.size)]) for after in (0, 1))
    every = torch.zeros(sum(lengths), dtype=torch.float64)
    every[begin:end] = torch.from_numpy(own[: end - begin])
    ranks.sum(every)
    return np.split(every.numpy(), np.cumsum(lengths)[:-1])
