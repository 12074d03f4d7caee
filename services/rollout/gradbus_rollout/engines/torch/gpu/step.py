"""A decode step as one CUDA graph: inputs go to the device in one copy, draws come back in another, and nothing waits in between."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from gradbus.formats.tokens import LOGPROB_DTYPE
from gradbus_kernels.operators import SamplingParams, sample_at
from gradbus_rollout.engines.torch.attention import Decoder
from gradbus_rollout.engines.torch.config import TorchEngineConfig
from gradbus_rollout.engines.torch.gpu.cache import RowCache
from gradbus_rollout.engines.torch.gpu.graph import Replayed
from gradbus_rollout.engines.torch.samples.rows import Draws, Rows

_INPUTS: Final = 4
"""Numbers of 8 bytes for each row: token, position, uniform, and whether it is greedy."""


class DeviceStep:
    """Draws a token for every row of a cache."""

    def __init__(self, model: Decoder, cache: RowCache, config: TorchEngineConfig) -> None:
        self._model = model
        self._cache = cache
        self._temperature = torch.full((config.slots,), config.temperature, device=config.device)
        self._inputs = torch.zeros(_INPUTS, config.slots, dtype=torch.int64, device=config.device)
        self._host = torch.zeros(self._inputs.shape, dtype=torch.int64, pin_memory=self._inputs.is_cuda)
        self.replayed = Replayed(self._compute, model, cache)

    def __call__(self, rows: Rows) -> Draws:
        """The next draw of every row."""
        self._cache.reserve(int(rows.positions.max()) + 1)
        greedy = rows.greedy if rows.greedy is not None else torch.zeros(1)
        for into, numbers in zip(self._host, (rows.tokens, rows.positions, rows.uniforms().view(torch.int64), greedy), strict=True):
            into.copy_(numbers.view(-1))
        self._inputs.copy_(self._host, non_blocking=True)
        ids, logprobs = self.replayed().cpu().numpy()
        return Draws(ids.astype(np.int64), logprobs.astype(LOGPROB_DTYPE))

    def _compute(self) -> Tensor:
        """Ids and log-probabilities, float64 `[2, slots, 1]`, which holds both exactly."""
        tokens, positions, uniforms, greedy = self._inputs[..., None]
        hidden = self._model.forward(tokens, positions, self._cache)
        sampling = SamplingParams(self._temperature, greedy=greedy.view(-1).bool())
        drawn = sample_at(self._model.logits(hidden), uniforms.view(torch.float64), sampling)
        return torch.stack((drawn.ids.double(), drawn.logprobs.double()))
