"""Data parallelism on the cores of one CPU: threads that compute micro-batches side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from threading import Event

import torch
from torch import Tensor
from torch.nn import Parameter

from gradbus_kernels.operators import PolicyLoss, PolicyTokens
from gradbus_trainer.learners.gradient_step import GradientStep
from gradbus_trainer.learners.working_weights import add_gradient

Forward = tuple[PolicyTokens, Callable[[], PolicyLoss]]
"""A micro-batch and what computes its loss."""


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
        self._pool = ThreadPoolExecutor(threads, "micro-batch")

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
