"""Data parallelism on the cores of one CPU: threads that compute micro-batches side by side."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from threading import Event, get_native_id
from typing import Final

import torch
from torch import Tensor
from torch.nn import Parameter

from gradbus_kernels.operators import PolicyLoss, PolicyTokens
from gradbus_trainer.learners.gradient_step import GradientStep
from gradbus_trainer.learners.working_weights import add_gradient

Forward = tuple[PolicyTokens, Callable[[], PolicyLoss]]
"""A micro-batch and what computes its loss."""
_NICENESS: Final = 5
"""Added to that of the process: an engine that samples beside the threads, on the same cores, comes first, and they take what it leaves.

At equal priority two threads leave an engine of one thread two thirds of a core, and at the end of each step a core has nothing to do.
"""


def accumulate_in_turn(step: GradientStep, passes: Iterable[Forward]) -> None:
    """Computes one micro-batch after the other."""
    for tokens, forward in passes:
        step.accumulate(tokens, forward, Tensor.backward)


class DataParallelThreads:
    """Computes micro-batches side by side and adds their gradients in their order: neither the threads nor their pace change a bit.

    Each thread multiplies on one core and takes the next micro-batch when it is done with one. So a core that is busy with something else
    computes fewer of them, while the threads of one product would wait for it each time.
    """

    def __init__(self, threads: int, weights: Sequence[Tensor], owners: Sequence[Parameter]) -> None:
        """`weights` are those of the passes; each one's gradient is added to that of its owner, which may be itself."""
        self._weights = weights
        self._owners = owners
        self._pool = ThreadPoolExecutor(threads, "micro-batch", _give_way)

    def accumulate(self, step: GradientStep, passes: Iterable[Forward]) -> None:
        """Computes all micro-batches. Raises the error of the first that failed, once no thread computes any more."""
        work = list(passes)
        added = [Event() for _ in work]

        def compute(number: int) -> None:
            tokens, forward = work[number]
            try:
                step.accumulate(tokens, forward, partial(self._backward, added[number - 1] if number else None))
            finally:
                added[number].set()  # after a failure too: the threads whose turn comes later would wait for ever

        futures = [self._pool.submit(compute, number) for number in range(len(work))]
        wait(futures)
        for future in futures:
            future.result()

    def _backward(self, turn: Event | None, total: Tensor) -> None:
        gradients = torch.autograd.grad(total, self._weights, allow_unused=True)
        if turn is not None:
            turn.wait()
        for owner, gradient in zip(self._owners, gradients, strict=True):
            if gradient is not None:
                add_gradient(owner, gradient)


def _give_way() -> None:
    """Lowers the priority of this thread; only Linux has one for each thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
