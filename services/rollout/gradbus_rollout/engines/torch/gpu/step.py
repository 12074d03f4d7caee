"""A decode step as one CUDA graph: inputs go to the device in one copy, draws come back in another, and nothing waits in between."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators import SamplingParams, sample_at
from gradbus_rollout.engines.torch.cached.cache import RowCache
from gradbus_rollout.engines.torch.config import TorchEngineConfig
from gradbus_rollout.engines.torch.model import DecoderModel
from gradbus_rollout.engines.torch.rows import Draws, Rows

_INPUTS: Final = 4
"""Numbers of 8 bytes for each row: token, position, uniform, and whether it is greedy."""


class _Captured(NamedTuple):
    """A graph, the tensor that a replay fills, and the memory of the cache that it was captured with."""

    graph: torch.cuda.CUDAGraph
    drawn: Tensor
    memory: list[int]


class DeviceStep:
    """Draws a token for every row of a cache. The graph is captured anew when the cache has grown or its memory was given away."""

    def __init__(self, model: DecoderModel, cache: RowCache, config: TorchEngineConfig, captures: bool | None = None) -> None:
        """`captures`: whether there is a graph; by default on a GPU, except for experts, whose choice the host waits for."""
        self._model = model
        self._cache = cache
        self._captures = torch.device(config.device).type == "cuda" and model.config.experts is None if captures is None else captures
        self._temperature = torch.full((config.slots,), config.temperature, device=config.device)
        self._inputs = torch.zeros(_INPUTS, config.slots, dtype=torch.int64, device=config.device)
        self._host = torch.zeros(self._inputs.shape, dtype=torch.int64, pin_memory=self._inputs.is_cuda)
        self._graph: _Captured | None = None

    def drop_graph(self) -> None:
        """Frees the graph's memory, until the next step."""
        self._graph = None

    def __call__(self, rows: Rows) -> Draws:
        """The next draw of every row."""
        self._cache.reserve(int(rows.positions.max()) + 1)
        greedy = rows.greedy if rows.greedy is not None else torch.zeros(1)
        for into, numbers in zip(self._host, (rows.tokens, rows.positions, rows.uniforms().view(torch.int64), greedy), strict=True):
            into.copy_(numbers.view(-1))
        self._inputs.copy_(self._host, non_blocking=True)
        ids, logprobs = self._draw().cpu().numpy()
        return Draws(ids.astype("int64"), logprobs.astype("float32"))

    def _draw(self) -> Tensor:
        """Ids and log-probabilities, float64 `[2, slots, 1]`, which holds both exactly; on the device."""
        if not self._captures:
            return self._compute()
        memory = [tensor.data_ptr() for tensor in self._cache.tensors]
        if self._graph is None or self._graph.memory != memory:
            self._graph = None  # so that its memory is free for the next
            self._graph = self._capture(memory)
        self._graph.graph.replay()
        return self._graph.drawn

    def _capture(self, memory: list[int]) -> _Captured:
        """Computes the step once before, because the first use of a kernel loads it, which no graph takes."""
        self._compute()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads go on with what they do
            drawn = self._compute()
        return _Captured(graph, drawn, memory)

    def _compute(self) -> Tensor:
        tokens, positions, uniforms, greedy = self._inputs[..., None]
        hidden = self._model.forward(tokens, positions, self._cache)
        sampling = SamplingParams(self._temperature, greedy=greedy.view(-1).bool())
        drawn = sample_at(self._model.logits(hidden), uniforms.view(torch.float64), sampling)
        return torch.stack((drawn.ids.double(), drawn.logprobs.double()))
