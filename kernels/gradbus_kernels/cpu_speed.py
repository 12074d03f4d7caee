"""How fast one core of this machine is at what a step consists of, in about five seconds: `python -m gradbus_kernels.cpu_speed WIDTH`.

`gradbus plan --cpu` rests on it. A core that is busy with other processes is measured by the seconds that it gave to this one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import torch
from torch import Tensor

from gradbus_kernels.models.dtypes import DTYPES
from gradbus_kernels.operators import PrefixLayout, prefix_shared_attention, sample_at
from gradbus_kernels.operators.decoder_layer.norm import rms_norm
from gradbus_kernels.operators.decoder_layer.swiglu import swiglu
from gradbus_kernels.operators.linear.api import linear
from gradbus_kernels.operators.linear.product_dtype import product, product_dtype

_TOKENS: Final = 2048
"""Of a product and a pass; what they read and write is more than a core's caches hold."""
_ROWS: Final = 64
"""Of a decode step."""
_FEW: Final = 8
"""Rows of a product that takes as long as its weights take to be read and put in order."""
_CACHED: Final = 64 << 20
"""Bytes of keys and values, and of the weights that decode steps read in turn."""
_COPIED: Final = 128 << 20
_HEADS: Final = 2
"""Queries that share a key, of `_HEAD` elements."""
_HEAD: Final = 64
_PAGE: Final = 128
_SIDE_BY_SIDE: Final = 256
"""Heads of a page: of 64 samples four each."""
_LENGTH: Final = 128
"""Of a text in a micro-batch."""
_VOCABULARY: Final = 8192
_CALLS: Final = 300
_REPEATS: Final = 2
_ROUNDS: Final = 3
"""A core is slower for tenths of a second at a time, by up to a half, so each rate is measured at several times."""
_ENOUGH: Final = 5.0
"""Seconds after which no round begins: a core that others keep busy is measured less often."""
Rates = dict[str, float | dict[str, float]]


def measure(width: int) -> Rates:
    """Rates of one core for a model whose hidden states have `width` elements, the median of its rounds each; most are by dtype of a spec.

    `training` and `decode`: FLOP/s of products of many rows and of a decode step's. `read`: weights/s of products of
    few rows. `paired`: FLOP/s of a training step's attention.
    `kept`: elements/s that a forward pass keeps and its backward pass reads. `attended`: elements/s of a cache. `drawn`: logits/s of the
    sampler. `copied`: bytes/s, each read and written. `fresh`: bytes/s of memory that comes from the system, beside what it takes to write
    it. `operator`: seconds of an operator that has nothing to do. `widened`: 1 where bf16 is multiplied in float32, else 0.
    """
    torch.set_num_threads(1)
    began, rounds = time.monotonic(), [_round(width)]
    while len(rounds) < _ROUNDS and time.monotonic() - began < _ENOUGH:
        rounds.append(_round(width))
    return medians(rounds)


def medians(rounds: Sequence[Rates]) -> Rates:
    """The median of each rate."""
    return {name: _median([found[name] for found in rounds]) for name in rounds[0]}


def _median(values: Sequence[float | dict[str, float]]) -> float | dict[str, float]:
    by_dtype = [value for value in values if isinstance(value, dict)]
    if by_dtype:
        return {dtype: median(value[dtype] for value in by_dtype) for dtype in by_dtype[0]}
    return median(value for value in values if not isinstance(value, dict))


def _round(width: int) -> Rates:
    by_dtype = {"training": _training, "decode": _decode, "read": _read, "paired": _paired, "kept": _kept, "attended": _attended}
    found = {name: {dtype: rate(width, DTYPES[dtype]) for dtype in DTYPES} for name, rate in by_dtype.items()}
    widened = float(product_dtype(torch.bfloat16, torch.device("cpu")) != torch.bfloat16)
    return {**found, "drawn": _drawn(), "copied": _copied(), "fresh": _fresh(), "operator": _operator(), "widened": widened}


def _training(width: int, dtype: torch.dtype) -> float:
    x, weight = _random(_TOKENS, width, dtype=dtype), _random(2 * width, width, dtype=dtype)
    x.requires_grad_()
    weight.requires_grad_()

    def both_ways() -> None:
        out = linear(x, weight)
        torch.autograd.grad(out, (x, weight), out.detach())

    return 6 * x.numel() * len(weight) / _seconds(both_ways)


def _decode(width: int, dtype: torch.dtype) -> float:
    return 2 * _ROWS * _weights(width, dtype, _ROWS)


def _read(width: int, dtype: torch.dtype) -> float:
    return _weights(width, dtype, _FEW)


def _weights(width: int, dtype: torch.dtype, rows: int) -> float:
    """Weights/s of products of so many rows."""
    x = _random(rows, width, dtype=dtype)
    count = max(1, _CACHED // (2 * width * width * dtype.itemsize))
    weights = [_random(2 * width, width, dtype=dtype) for _ in range(count)]

    def every() -> None:
        for weight in weights:
            linear(x, weight)

    with torch.inference_mode():
        return 2 * width * width * count / _seconds(every)


def _paired(width: int, dtype: torch.dtype) -> float:
    heads, count = max(1, width // _HEAD), _TOKENS // _LENGTH
    layout = PrefixLayout.of_lengths([_LENGTH] * count, [None] * count)
    query, key, value = (_random(_TOKENS, heads, _HEAD, dtype=dtype).requires_grad_() for _ in range(3))

    def both_ways() -> None:
        out = prefix_shared_attention(query, key, value, layout, _HEAD**-0.5)
        torch.autograd.grad(out, (query, key, value), out.detach())

    return 6 * query.numel() * _LENGTH / _seconds(both_ways)


def _kept(width: int, dtype: torch.dtype) -> float:
    x, scale = _random(_TOKENS, 2 * width, dtype=dtype), _random(2 * width, dtype=dtype)
    x.requires_grad_()

    def both_ways() -> None:
        normed = rms_norm(x, scale, 1e-6)
        gated = swiglu(normed)
        torch.autograd.grad(gated, x, gated.detach())

    return (2 * x.numel() + x.numel() // 2) / _seconds(both_ways)


def _attended(width: int, dtype: torch.dtype) -> float:  # noqa: ARG001 - heads have their own
    rows = _CACHED // (2 * _PAGE * _HEAD * dtype.itemsize)
    queries, keys = _random(rows, _HEADS, _HEAD, dtype=dtype), _random(rows, _PAGE, _HEAD, dtype=dtype).transpose(1, 2)
    values = _random(rows, _PAGE, _HEAD, dtype=dtype)

    pages = list(zip(*(torch.split(tensor, _SIDE_BY_SIDE) for tensor in (queries, keys, values)), strict=True))

    def attend() -> None:
        for query, key, value in pages:
            product(product(query, key).float().softmax(-1).to(dtype), value)

    with torch.inference_mode():
        return (keys.numel() + values.numel()) / _seconds(attend)


def _drawn() -> float:
    logits, uniforms = _random(_ROWS, _VOCABULARY), torch.full((_ROWS,), 0.5, dtype=torch.float64)
    with torch.inference_mode():
        return logits.numel() / _seconds(lambda: sample_at(logits, uniforms))


def _copied() -> float:
    source = torch.ones(_COPIED, dtype=torch.uint8)
    target = torch.ones_like(source)
    return 2 * _COPIED / _seconds(lambda: target.copy_(source))


def _fresh() -> float:
    kept = torch.empty(_COPIED, dtype=torch.uint8)
    written = _seconds(lambda: kept.fill_(1))
    from_system = _seconds(lambda: torch.empty(_COPIED, dtype=torch.uint8).fill_(1)) - written
    return _COPIED / max(from_system, written / 1000.0)  # where it costs nothing, noise may be more than the difference


def _operator() -> float:
    small, out = torch.ones(_ROWS, 16), torch.ones(_ROWS, 16)

    def calls() -> None:
        for _ in range(_CALLS):
            torch.add(small, small, out=out)

    with torch.inference_mode():
        return _seconds(calls) / _CALLS


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape).sub_(0.5).to(dtype)


def _seconds(work: Callable[[], object]) -> float:
    """Of this process, in the fastest of some calls after a first one."""
    work()
    seconds = []
    for _ in range(_REPEATS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures one core of this machine.")
    parser.add_argument("width", type=int, help="Elements of a model's hidden states.")
    sys.stdout.write(json.dumps(measure(parser.parse_args().width)) + "\n")
