"""Softmax statistics and gradients of an LM head, in tiles that stay in a core's cache.

Logits and statistics are float32 (or float64) for inputs of any dtype. Only the gradient in the logits is rounded to bfloat16, for its
products, where a CPU multiplies bfloat16. float16 is multiplied as float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_kernels.operators.base.softcap import softcap_in_place, softcap_slopes
from gradbus_kernels.operators.linear.onednn import is_product_for_onednn, matmul
from gradbus_kernels.operators.linear.product_dtype import product_dtype
from gradbus_kernels.operators.linear_logprob.head import Coefficients, Differentiate, Gradients, Head, Statistics, add_product

PRODUCT_TOKENS: Final = 4096
"""Most tokens in a product of the forward pass, unless the vocabulary is small. Times PRODUCT_COLUMNS, 32 MiB of float32: enough for a
BLAS's full speed."""
PRODUCT_COLUMNS: Final = 2048
PIECE: Final = 1 << 18
"""Logits of such a product that are summed at a time; they and their exponentials stay in a core's L2 cache."""
TOKENS: Final = 512
"""Least tokens in a tile of the gradients. Times COLUMNS, 2 MiB of float32: a core's L2 cache."""
COLUMNS: Final = 1024
LEAST_ONEDNN: Final = 1 << 27
"""Multiplications of a product that oneDNN makes. The last tokens' number differs from step to step, and each one costs a preparation."""
WORKSPACE: Final = 256 << 20
"""Most bytes of logits that exist at a time for the gradients."""
LOWEST: Final = -1e4
"""Replaces log 0, because 0 · log 0 would be NaN."""


def statistics(head: Head, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Online log-sum-exp and entropy (Milakov and Gimelshein 2018, arXiv:1805.02867); the logits of one product exist at a time."""
    columns = min(PRODUCT_COLUMNS, len(head.weight))
    tokens = max(1, min(max(PRODUCT_TOKENS, PRODUCT_TOKENS * PRODUCT_COLUMNS // columns), len(head.ids)))
    height = max(1, min(PIECE // columns, tokens))
    work = _Work(head, columns, height * columns)
    online = _Online(work, entropy)
    logits = work.wide.new_empty(tokens * columns)
    for span in slices(len(head.weight), columns):
        part = work.part(span)
        for rows in slices(len(head.ids), tokens):
            product = logits[: (rows.stop - rows.start) * len(part)].view(-1, len(part))
            work.multiply(rows, part, product)
            for piece in slices(len(product), height):
                online.add(slice(rows.start + piece.start, rows.start + piece.stop), span, product[piece])
    return online.statistics()


def gradients(head: Head, differentiate: Differentiate, wanted: tuple[bool, bool]) -> Gradients:
    """Statistics and gradients. The logits of one tile's tokens exist at a time, over the whole vocabulary, within WORKSPACE."""
    columns = min(COLUMNS, len(head.weight))
    tokens = min(max(TOKENS, TOKENS * COLUMNS // columns), _room(head))
    work = _Work(head, columns, min(tokens, len(head.ids)) * columns)
    found = Statistics(*head.hidden.new_empty(2, len(head.ids), dtype=head.accumulator).unbind())
    grad_hidden = torch.zeros_like(head.hidden) if wanted[0] else None
    # A sum of several products needs the accumulator's precision.
    sum_dtype = head.hidden.dtype if len(head.ids) <= tokens else head.accumulator
    grad_weight = torch.zeros_like(head.weight, dtype=sum_dtype) if wanted[1] else None
    logits = work.wide.new_empty(min(tokens, len(head.ids)) * len(head.weight))
    for rows in slices(len(head.ids), tokens):
        chunk = _Chunk(work, rows, logits)
        statistics = chunk.statistics()
        for whole, part in zip(found, statistics, strict=True):
            whole[rows] = part
        scale = chunk.to_gradient(differentiate(rows, statistics))
        if scale.any():
            chunk.add_products(scale, grad_hidden, grad_weight)
    return Gradients(found, grad_hidden, None if grad_weight is None else grad_weight.to(head.weight.dtype))


class _Chunk:
    """The logits of some tokens, tile by tile, which become their gradient in place.

    First z, then e = exp(z - max z). With S = sum e, a log-probability's gradient is (onehot - e / S) / temperature. Apart from the
    token's own entry this is e times a factor of the row, and that factor is applied to the other matrix of each product.
    """

    def __init__(self, work: _Work, rows: slice, buffer: Tensor) -> None:
        self._work, self._rows, self._buffer = work, rows, buffer
        head = work.head
        self._ids, self._inverse = head.ids[rows], 1.0 / head.temperature
        self._top, self._own, self._total, self._moment = head.hidden.new_zeros(4, len(self._ids), dtype=head.accumulator).unbind()

    def statistics(self) -> Statistics:
        """Computes the logits, then e."""
        self._top = self._multiply()
        self._own = self._own * self._inverse - self._top
        for _, tile in self._tiles():
            shifted = self._work.scratch(tile)
            torch.add(-self._top[:, None], tile, alpha=self._inverse, out=shifted)
            shares = torch.exp(shifted, out=tile)
            self._total.add_(shares.sum(1))
            self._moment.add_(shifted.clamp_(min=LOWEST).mul_(shares).sum(1))
        log_total = self._total.log()
        return Statistics(self._own - log_total, log_total - self._moment / self._total)

    def to_gradient(self, coefficients: Coefficients) -> Tensor:
        """Turns e into the gradient of the loss in the logits, up to a factor for each token, which is returned."""
        slope, share = coefficients.logprobs, self._own.exp()
        if coefficients.entropies is None:
            if self._work.head.softcap is not None:
                for _, shares in self._tiles():
                    shares.mul_(self._slopes(shares.log()))
            self._replace_own(share - self._total)
            return -slope * self._inverse / self._total
        # An entropy's gradient is -p (log p + entropy).
        bend = -coefficients.entropies
        level = -slope - bend * self._moment / self._total
        for _, shares in self._tiles():
            shifted = torch.log(shares, out=self._work.scratch(shares)).clamp_(min=LOWEST)
            slopes = None if self._work.head.softcap is None else self._slopes(shifted.clone())
            torch.mul(shifted.mul_(bend[:, None]).add_(level[:, None]), shares, out=shares)
            if slopes is not None:
                shares.mul_(slopes)
        self._replace_own(share * (level + bend * self._own.clamp(min=LOWEST)) + slope * self._total)
        return self._inverse / self._total

    def add_products(self, scale: Tensor, grad_hidden: Tensor | None, grad_weight: Tensor | None) -> None:
        """Adds these tokens' part to the gradients."""
        hidden, narrow = self._work.wide[self._rows], self._work.narrow
        sums = torch.zeros_like(hidden)
        scaled = (hidden * scale[:, None]).to(narrow)
        for columns, tile in self._tiles():
            slopes = tile.to(narrow)
            if grad_hidden is not None:
                _add_product(sums, slopes, self._work.head.weight[columns].to(narrow))
            if grad_weight is not None:
                _add_product(grad_weight[columns], slopes.T, scaled)
        if grad_hidden is not None:
            grad_hidden[self._rows] = sums.mul_(scale[:, None])

    def _multiply(self) -> Tensor:
        """Computes the logits; returns each row's maximum after the temperature."""
        tops = []
        for columns, tile in self._tiles():
            self._work.multiply(self._rows, self._work.part(columns), tile)
            tops.append(tile.amax(1))
            _choose(self._own, tile, self._ids, columns)
        return torch.stack(tops).amax(0) * self._inverse

    def _slopes(self, shifted: Tensor) -> Tensor:
        """Derivatives of the bounded logits by the logits, from log e, `[n, v]`; in place."""
        bounded = shifted.clamp_(min=LOWEST).add_(self._top[:, None]).mul_(self._work.head.temperature)
        return softcap_slopes(bounded, cast("float", self._work.head.softcap))

    def _replace_own(self, entries: Tensor) -> None:
        if self._work.head.softcap is not None:
            entries = entries * self._slopes(self._own[:, None].clone()).squeeze(1)
        for columns, tile in self._tiles():
            tokens = ((self._ids >= columns.start) & (self._ids < columns.stop)).nonzero().squeeze(1)
            tile[tokens, self._ids[tokens] - columns.start] = entries[tokens]

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        count = len(self._ids)
        for columns in slices(len(self._work.head.weight), self._work.columns):
            yield columns, self._buffer[count * columns.start : count * columns.stop].view(count, -1)


class _Work:
    """The hidden states in the accumulator's dtype, and a buffer of one tile's size."""

    def __init__(self, head: Head, columns: int, size: int) -> None:
        self.head, self.columns = head, columns
        self.wide = head.hidden.to(head.accumulator)
        """`[N, H]`."""
        self.narrow = torch.float32 if head.hidden.dtype == torch.float16 else product_dtype(head.hidden.dtype, head.hidden.device)
        """The dtype of the gradients' products."""
        self._buffer = self.wide.new_empty(size)

    def part(self, columns: slice) -> Tensor:
        """Some rows of the weight, `[v, H]`, in the accumulator's dtype."""
        return self.head.weight[columns].to(self.wide.dtype)

    def multiply(self, rows: slice, part: Tensor, out: Tensor) -> None:
        """The logits of these tokens at the ids of `part`, bounded if the head has a softcap."""
        hidden = self.wide[rows]
        if is_product_for_onednn(hidden, part.T, LEAST_ONEDNN):
            out.copy_(matmul(hidden, part.T))
        else:
            torch.mm(hidden, part.T, out=out)
        softcap_in_place(out, self.head.softcap)

    def scratch(self, tile: Tensor) -> Tensor:
        """A buffer of the tile's shape."""
        return self._buffer[: tile.numel()].view(tile.shape)


class _Online:
    """Running sums, relative to the largest logit so far: total = sum e, moment = sum e log e with e = exp(z - top)."""

    def __init__(self, work: _Work, entropy: bool) -> None:
        head = work.head
        self._work, self._ids, self._inverse, self._entropy = work, head.ids, 1.0 / head.temperature, entropy
        self._top, self._total, self._moment, self._own = head.hidden.new_zeros(4, len(head.ids), dtype=head.accumulator).unbind()
        self._top.fill_(torch.finfo(head.accumulator).min)

    def add(self, rows: slice, columns: slice, tile: Tensor) -> None:
        """Adds the logits of these tokens at these ids, before the temperature; overwrites `tile`."""
        top, total, moment = self._top[rows], self._total[rows], self._moment[rows]
        _choose(self._own[rows], tile, self._ids[rows], columns)
        higher = torch.maximum(top, tile.amax(1) * self._inverse)
        fall = top - higher
        shrink = fall.exp()
        moment.addcmul_(total, fall).mul_(shrink)
        total.mul_(shrink)
        top.copy_(higher)
        shifted = torch.add(-higher[:, None], tile, alpha=self._inverse, out=tile)
        if self._entropy:
            shares = torch.exp(shifted, out=self._work.scratch(tile))
            moment.add_(_weighted_sum(shifted, shares))
        else:
            shares = shifted.exp_()
        total.add_(shares.sum(1))

    def statistics(self) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies of all tokens."""
        log_total = self._total.log()
        entropies = log_total - self._moment / self._total if self._entropy else None
        return self._own * self._inverse - self._top - log_total, entropies


def _weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of each row; overwrites `values`. A value of weight 0 adds 0, even if it is infinite."""
    total = values.mul_(weights).sum(1)
    return values.masked_fill_(weights == 0, 0.0).sum(1) if bool(total.isnan().any()) else total


def _add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """sums += left · right."""
    if is_product_for_onednn(left, right, LEAST_ONEDNN):
        sums.add_(matmul(left, right))
    else:
        add_product(sums, left, right)


def _choose(own: Tensor, tile: Tensor, ids: Tensor, columns: slice) -> None:
    """Copies into `own` the logits of the tokens whose ids are among `columns`."""
    local = ids - columns.start
    inside = (local >= 0) & (local < tile.shape[1])
    chosen = tile.gather(1, local.clamp(0, tile.shape[1] - 1)[:, None]).squeeze(1)
    own.copy_(torch.where(inside, chosen, own))


def _room(head: Head) -> int:
    """The number of tokens whose logits fit WORKSPACE; a multiple of 64 if at least 64 fit."""
    room = max(1, WORKSPACE // (len(head.weight) * head.accumulator.itemsize))
    return room if room < 64 else room - room % 64
