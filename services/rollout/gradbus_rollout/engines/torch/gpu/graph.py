"""A computation over a cache as a CUDA graph: a replay launches all of its kernels at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_rollout.engines.torch.cached.cache import RowCache
from gradbus_rollout.engines.torch.model import DecoderModel


class _Captured(NamedTuple):
    """A graph, the tensor that a replay fills, and the memory of the cache that it was captured with."""

    graph: torch.cuda.CUDAGraph
    result: Tensor
    memory: list[int]


class Replayed:
    """A function of tensors that stay where they are. Calls replay a graph, which is captured anew when the cache has other memory."""

    def __init__(self, compute: Callable[[], Tensor], model: DecoderModel, cache: RowCache) -> None:
        """There is no graph on a CPU, or with experts, for whose choice the host waits."""
        self._compute = compute
        self._cache = cache
        self.captures = cache.rows.is_cuda and model.config.experts is None
        """Whether there is a graph; without one, a call computes."""
        self._captured: _Captured | None = None

    def __call__(self) -> Tensor:
        """The result, which lasts until the next call."""
        if not self.captures:
            return self._compute()
        memory = [tensor.data_ptr() for tensor in self._cache.tensors]
        if self._captured is None or self._captured.memory != memory:
            self._captured = None  # so that its memory is free for the next
            self._captured = self._capture(memory)
        self._captured.graph.replay()
        return self._captured.result

    def drop(self) -> None:
        """Frees the graph and its memory, until the next call. Weights that move need this too."""
        self._captured = None

    def _capture(self, memory: list[int]) -> _Captured:
        """Computes once before, because the first use of a kernel loads it, which no graph takes."""
        self._compute()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads go on with what they do
            result = self._compute()
        return _Captured(graph, result, memory)
