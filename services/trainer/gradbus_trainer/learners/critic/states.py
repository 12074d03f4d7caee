"""The hidden states that values are read from: those of a model in this process, for all rows of a batch or for one rank's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from gradbus_kernels.models.causal_lm import head_inputs
from gradbus_trainer.learners.critic.body import Body
from gradbus_trainer.learners.critic.gae import Floats
from gradbus_trainer.step.batch import Batch, TrainSample, micro_batches


class HiddenStates(Protocol):
    """Where a critic's values come from, and how what one process computes becomes that of all. Ranks call the same methods together."""

    @property
    def device(self) -> torch.device:
        """Of the hidden states."""
        ...

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        ...

    @property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """The trained weights of a model of the critic's own, by name; none if the policy's states are read."""
        ...

    @property
    def held(self) -> Sequence[Tensor]:
        """The tensors of the critic's own model."""
        ...

    def micro_batches(self, batch: Batch) -> Sequence[Sequence[TrainSample]]:
        """The rows that this process computes, in order, with all rows of a sample in one piece. Others may follow that train nothing."""
        ...

    def hidden(self, samples: Sequence[TrainSample]) -> Tensor:
        """The states before the samples' R response tokens, `[R, H]`; with a gradient only if weights are trained."""
        ...

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Makes each gradient the sum over all processes."""
        ...

    def of_all_rows(self, batch: Batch, rows: Sequence[Floats]) -> list[Floats]:
        """What all processes found for the trainable tokens of their rows, for each row of the batch."""
        ...


class ModelStates:
    """Those of a model in one process, which computes all rows."""

    def __init__(self, body: Body, budget: int) -> None:
        """`budget`: tokens of a micro-batch."""
        self.model = body.model
        self.trained = body.trained
        self._budget = budget

    @property
    def device(self) -> torch.device:
        """See `HiddenStates`."""
        return self.model.device

    @property
    def width(self) -> int:
        """See `HiddenStates`."""
        return self.model.head_weight.shape[1]

    @property
    def held(self) -> Sequence[Tensor]:
        """See `HiddenStates`. Frozen ones may be the policy's too."""
        return [*self.model.parameters(), *self.model.buffers()] if self.trained else []

    def micro_batches(self, batch: Batch) -> Sequence[Sequence[TrainSample]]:
        """See `HiddenStates`."""
        return micro_batches(batch, self._budget, self.model.shares_prompts, whole_samples=True)

    def hidden(self, samples: Sequence[TrainSample]) -> Tensor:
        """See `HiddenStates`."""
        with torch.set_grad_enabled(bool(self.trained)):
            hidden, _, _ = head_inputs(self.model, samples)
        return hidden

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """See `HiddenStates`."""

    def of_all_rows(self, batch: Batch, rows: Sequence[Floats]) -> list[Floats]:  # noqa: ARG002 - all rows are here
        """See `HiddenStates`."""
        return list(rows)
