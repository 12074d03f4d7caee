"""Compares size and speed of a weights delta with XOR + zstd and index + value, with a memcpy probe in the same rounds.

    OMP_NUM_THREADS=1 python benchmarks/weights_delta.py [--elements 16777216] [--rounds 7]

Weights are bfloat16 roundings of float32 masters, N(0, 0.02). The step is AdamW's, after ten steps of random gradients; its
learning rate is set so that a given share of the weights changes. The floor is the entropy of the change of every weight,
counted in floats, given the exponent of the old weight. Speeds are model bytes over the median CPU time of one process with
one thread; the codecs take turns. The delta, compiled and by numpy, computes the old and the new weights' digests; the other two
check nothing. The bounds do what no such delta can leave out: read both versions and digest them; copy one and digest both, in
blocks that stay in the cache. Break-even is the speed of storing and fetching a whole file, one after the other, above which that is
faster than to encode, store, fetch and apply its delta. Writes results/weights_delta.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import zstandard
from torch import Tensor
from xxhash import xxh3_128

from gradbus_kernels.weights.delta.chunk import blocks
from gradbus_kernels.weights.delta.format import FORMATS, FlatTensor, apply_tensors, encode_tensors
from gradbus_kernels.weights.delta.loops import NUMPY, Loops, compiled_loops

RESULT = Path(__file__).parent / "results/weights_delta.md"
SHARES = (0.001, 0.01, 0.03, 0.1)
CODECS = ("bound", "delta", "delta by numpy", "XOR + zstd", "index + value")
SIZED = ("delta", "XOR + zstd", "index + value")
"""Of each message one codec; numpy's delta has the same bytes as the compiled one."""


class Codec(NamedTuple):
    """`encode()` returns the message; `decode(message)` writes the new weights into the memory that the codec was created with."""

    encode: Callable[[], bytes]
    decode: Callable[[bytes], object]


def adam_direction(size: int) -> tuple[Tensor, Tensor]:
    """Master weights, and AdamW's update of them at learning rate 1."""
    torch.manual_seed(0)
    masters = torch.nn.Parameter(torch.randn(size) * 0.02)
    optimizer = torch.optim.AdamW([masters], lr=1e-7, weight_decay=0.0)
    for _ in range(10):
        masters.grad = torch.randn(size)
        optimizer.step()
    state = optimizer.state[masters]
    mean, square = state["exp_avg"] / (1 - 0.9**10), state["exp_avg_sq"] / (1 - 0.999**10)
    return masters.detach(), mean / (square.sqrt() + 1e-8)


def versions(masters: Tensor, direction: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The weights before and after a step that changes `share` of them."""
    low, high = 1e-9, 1e-2
    for _ in range(40):
        rate = (low * high) ** 0.5
        sample = slice(0, 1 << 20)
        changed = (masters[sample].bfloat16() != (masters[sample] - rate * direction[sample]).bfloat16()).float().mean()
        low, high = (rate, high) if changed < share else (low, rate)
    return masters.bfloat16(), (masters - rate * direction).bfloat16()


def floor_bytes(old: np.ndarray, new: np.ndarray) -> float:
    """Entropy of all changes given the exponents of the old weights."""
    ranks = [np.where(bits >> 15, ~bits, bits | 0x8000) for bits in (old, new)]
    pairs, counts = np.unique((old >> 7 & 255).astype(np.uint32) << 16 | (ranks[1] - ranks[0]), return_counts=True)
    of_exponent = np.bincount(pairs >> 16, counts)
    return float((counts * np.log2(of_exponent[pairs >> 16] / counts)).sum() / 8)


def delta(old: np.ndarray, new: np.ndarray, into: np.ndarray, loops: Loops) -> Codec:
    """The delta by these loops."""
    before, after, result = ({"w": FlatTensor(FORMATS["BF16"], bits.shape, bits)} for bits in (old, new, into))
    return Codec(lambda: encode_tensors(before, after, loops), lambda message: apply_tensors(message, before, result, loops))


def bound(old: np.ndarray, new: np.ndarray, into: np.ndarray) -> Codec:
    """Memory and digests alone: reads both versions, and copies the new one."""

    def encode() -> bytes:
        digests = xxh3_128(), xxh3_128()
        for block in blocks(old):
            digests[0].update(old[block].data)
            digests[1].update(new[block].data)
        return b""

    def decode(_: bytes) -> None:
        digests = xxh3_128(), xxh3_128()
        for block in blocks(old):
            np.copyto(into[block], new[block])
            digests[0].update(new[block].data)
            digests[1].update(into[block].data)

    return Codec(encode, decode)


def codecs(old: Tensor, new: Tensor, into: Tensor) -> dict[str, Codec]:
    """All codecs over the same weights."""
    compiled = compiled_loops()
    if compiled is None:
        raise SystemExit("numba is missing; install gradbus[fast]")
    before, after, result = (tensor.view(torch.int16).numpy().view(np.uint16) for tensor in (old, new, into))
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def sparse() -> bytes:
        places = np.flatnonzero(before != after).astype(np.uint32)
        return places.tobytes() + after[places].tobytes()

    def scatter(message: bytes) -> None:
        count = len(message) // 6
        np.copyto(result, before)
        result[np.frombuffer(message, np.uint32, count)] = np.frombuffer(message, np.uint16, count, 4 * count)

    return {
        "delta": delta(before, after, result, compiled),
        "delta by numpy": delta(before, after, result, NUMPY),
        "XOR + zstd": Codec(
            lambda: compressor.compress((before ^ after).data),
            lambda message: np.bitwise_xor(before, np.frombuffer(decompressor.decompress(message), np.uint16), out=result),
        ),
        "index + value": Codec(sparse, scatter),
    }


def timed(times: list[float], work: Callable[[], Any]) -> Any:
    """Returns the result of `work` and appends the CPU seconds of the process to `times`."""
    begin = time.process_time()
    result = work()
    times.append(time.process_time() - begin)
    return result


def measure(old: Tensor, new: Tensor, rounds: int) -> tuple[dict[str, int], dict[str, float]]:
    """Bytes of each codec's message; median seconds of `memcpy` and of each codec's two halves."""
    into = torch.zeros_like(old)
    bits = [tensor.view(torch.int16).numpy().view(np.uint16) for tensor in (old, new, into)]
    times: dict[str, list[float]] = defaultdict(list)
    sizes = {}
    for _ in range(rounds):
        timed(times["memcpy"], lambda: into.copy_(old))
        for name, codec in {"bound": bound(*bits), **codecs(old, new, into)}.items():
            message = timed(times[f"{name}, encode"], codec.encode)
            timed(times[f"{name}, decode"], partial(codec.decode, message))
            assert torch.equal(into.view(torch.int16), new.view(torch.int16)), name
            sizes[name] = len(message)
    return sizes, {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Prints the two tables and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    masters, direction = adam_direction(args.elements)
    size_rows, speed_rows = [], []
    for share in SHARES:
        old, new = versions(masters, direction, share)
        bits = [tensor.view(torch.int16).numpy().view(np.uint16) for tensor in (old, new)]
        floor, changed = floor_bytes(*bits), float((bits[0] != bits[1]).mean())
        sizes, times = measure(old, new, args.rounds)
        ratios = [f"{sizes[name] / floor:.2f}" for name in SIZED] + [f"{sizes['delta'] / sizes['XOR + zstd']:.2f}"]
        size_rows.append(f"| {changed:.2%} | {floor / old.nbytes:.3%} | {sizes['delta'] / old.nbytes:.3%} | {' | '.join(ratios)} |")
        speeds = [
            f"{old.nbytes / times[f'{name}, {half}'] / 1e9:.2f} ({times['memcpy'] / times[f'{name}, {half}']:.2f})"
            for half in ("encode", "decode")
            for name in CODECS
        ]
        saved = old.nbytes - sizes["delta"]
        even = [f"{saved / (times[f'{name}, encode'] + times[f'{name}, decode']) / 1e9:.2f}" for name in CODECS[1:3]]
        speed_rows.append(f"| {changed:.2%} | {old.nbytes / times['memcpy'] / 1e9:.1f} | {' | '.join(speeds)} | {' | '.join(even)} |")
    columns = [f"{name}, {half}" for half in ("encode", "decode") for name in CODECS]
    table = "\n".join(
        [
            f"{args.elements:,} bfloat16 weights; {args.rounds} rounds; load average at the end {os.getloadavg()[0]:.1f}.\n",
            "| changed | floor, of all | delta, of all | delta / floor | XOR + zstd / floor | index + value / floor | delta / XOR + zstd |",
            "|---:|---:|---:|---:|---:|---:|---:|",
            *size_rows,
            "\nGB/s of model bytes a core, in brackets as a fraction of memcpy:\n",
            f"| {' | '.join(['changed', 'memcpy', *columns, 'break-even', 'break-even by numpy'])} |",
            "|---:" * (4 + len(columns)) + "|",
            *speed_rows,
        ]
    )
    print(table)
    RESULT.write_text(f"{table}\n")


if __name__ == "__main__":
    main()
