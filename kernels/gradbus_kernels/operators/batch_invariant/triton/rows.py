"""Triton kernels of `invariant_rms_norm` and `row_logprobs`: one program a row, its columns in blocks of one size, in order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import INVARIANT_ROW


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `invariant_rms_norm`."""
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    if len(x):
        _rms_norm[(len(x),)](x, weight.contiguous(), out, x.shape[1], eps, BLOCK=INVARIANT_ROW)
    return out


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """See `row_logprobs`."""
    logits, out = logits.contiguous(), logits.new_empty(logits.shape, dtype=torch.float32)
    if len(logits):
        _log_softmax[(len(logits),)](logits, out, logits.shape[1], temperature, BLOCK=INVARIANT_ROW)
    return out


@triton.jit
def _rms_norm(x, weight, out, width, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    squares = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, width, BLOCK):
        column = block + tl.arange(0, BLOCK)
        values = tl.load(x + start + column, column < width, 0.0).to(tl.float32)
        squares += values * values
    root = tl.sqrt(tl.sum(squares, 0) / width + eps)
    for block in range(0, width, BLOCK):
        column = block + tl.arange(0, BLOCK)
        values = tl.load(x + start + column, column < width, 0.0).to(tl.float32) / root
        scaled = values.to(out.dtype.element_ty).to(tl.float32) * tl.load(weight + column, column < width, 0.0).to(tl.float32)
        tl.store(out + start + column, scaled.to(out.dtype.element_ty), column < width)


@triton.jit
def _log_softmax(logits, out, width, temperature, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    peaks = tl.full((BLOCK,), float("-inf"), tl.float32)
    for block in range(0, width, BLOCK):
        column = block + tl.arange(0, BLOCK)
        peaks = tl.maximum(peaks, tl.load(logits + start + column, column < width, float("-inf")).to(tl.float32) / temperature)
    peak = tl.max(peaks, 0)
    totals = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, width, BLOCK):
        column = block + tl.arange(0, BLOCK)
        totals += tl.exp(tl.load(logits + start + column, column < width, float("-inf")).to(tl.float32) / temperature - peak)
    total = peak + tl.log(tl.sum(totals, 0))
    for block in range(0, width, BLOCK):
        column = block + tl.arange(0, BLOCK)
        values = tl.load(logits + start + column, column < width, 0.0).to(tl.float32) / temperature
        tl.store(out + start + column, values - total, column < width)
