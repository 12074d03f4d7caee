"""How the engine's products and attention are computed: as fast as torch does, or so that a trainer gets the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from gradbus_kernels.operators.batch_invariant.attention import attend as invariant_attend
from gradbus_kernels.operators.batch_invariant.attention import padded_queries
from gradbus_kernels.operators.batch_invariant.matmul import multiply_blocks
from gradbus_rollout.engines.torch.attention import attend

Pages = Sequence[tuple[Tensor, Tensor]]


class Arithmetic(Protocol):
    """Products of rows and weights, and attention. In either, a sample's bits depend on its prompt, seed and weights alone."""

    def multiply(self, x: Tensor, weight: Tensor, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """`[N, K]` by `[K, M]`, plus `addend`, `[N, M]` or `[M]`; into `out` if given, which may be `addend`."""
        ...

    def width(self, count: int, size: int, lengths: tuple[int, ...], dtype: torch.dtype) -> int:
        """How many queries the biases for `attend` are made for, where there are `count`; `size` is head_dim, `lengths` the pages'."""
        ...

    def attend(self, queries: Tensor, pages: Pages, biases: Sequence[Tensor]) -> Tensor:
        """Attention of `[B, Q, D]` over pages."""
        ...


class Fast:
    """Plain torch."""

    def multiply(self, x: Tensor, weight: Tensor, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """See `Arithmetic`."""
        if addend is None:
            return torch.mm(x, weight) if out is None else torch.mm(x, weight, out=out)
        return torch.addmm(addend, x, weight) if out is None else torch.addmm(addend, x, weight, out=out)

    def width(self, count: int, size: int, lengths: tuple[int, ...], dtype: torch.dtype) -> int:  # noqa: ARG002
        """See `Arithmetic`."""
        return count

    def attend(self, queries: Tensor, pages: Pages, biases: Sequence[Tensor]) -> Tensor:
        """See `Arithmetic`."""
        return attend(queries, pages, biases)


class BatchInvariant:
    """The operators that the trainer uses too. Bits do not depend on the number of rows, so prefill, decode and training agree."""

    def multiply(self, x: Tensor, weight: Tensor, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """See `Arithmetic`."""
        return multiply_blocks(x, weight, addend, out)

    def width(self, count: int, size: int, lengths: tuple[int, ...], dtype: torch.dtype) -> int:
        """See `Arithmetic`."""
        return padded_queries(count, size, lengths, dtype)

    def attend(self, queries: Tensor, pages: Pages, biases: Sequence[Tensor]) -> Tensor:
        """See `Arithmetic`."""
        return invariant_attend(queries, pages, biases, queries.shape[-1] ** -0.5)


def arithmetic_for(numerics: Literal["fast", "batch_invariant"]) -> Arithmetic:
    """What a run's `numerics` names."""
    return BatchInvariant() if numerics == "batch_invariant" else Fast()
