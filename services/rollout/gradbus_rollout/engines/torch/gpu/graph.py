"""A computation over a cache as a CUDA graph: a replay launches all of its kernels at once."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_rollout.engines.torch.attention import Decoder
from gradbus_rollout.engines.torch.gpu.cache import RowCache

_ONE_AT_A_TIME: Final = Lock()
"""torch has one stream for all captures of a process, and no device may be synchronised meanwhile, which the begin of another does."""


class _Captured(NamedTuple):
    """A graph, the tensor that a replay fills, and the capacity of the cache, whose memory is another after a growth."""

    graph: torch.cuda.CUDAGraph
    result: Tensor
    capacity: int


class Replayed:
    """A function of tensors that stay where they are. Calls replay a graph, which is captured anew when the cache has grown."""

    def __init__(self, compute: Callable[[], Tensor], model: Decoder, cache: RowCache) -> None:
        """There is no graph on a CPU, or with experts, for whose choice the host waits."""
        self._compute = compute
        self._cache = cache
        self.uses_graph = cache.rows.is_cuda and model.config.experts is None
        """Without a graph, a call computes."""
        self._captured: _Captured | None = None

    def __call__(self) -> Tensor:
        """The result, which lasts until the next call."""
        if not self.uses_graph:
            return self._compute()
        if self._captured is None or self._captured.capacity != self._cache.capacity:
            self._captured = None  # so that its memory is free for the next
            with _ONE_AT_A_TIME:
                self._captured = self._capture()
        self._captured.graph.replay()
        return self._captured.result

    def drop(self) -> None:
        """Frees the graph and its memory, until the next call. It must be called before the memory of cache or weights is given away."""
        self._captured = None

    def _capture(self) -> _Captured:
        """Computes once before, because the first use of a kernel loads it, which no graph takes."""
        self._compute()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads go on with what they do
            result = self._compute()
        return _Captured(graph, result, self._cache.capacity)
