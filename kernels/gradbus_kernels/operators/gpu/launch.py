"""Block sizes and warps of the Triton kernels. Nothing here changes a result beyond the order of its sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """A block of attention scores; both sizes are powers of two from 16."""

    queries: int
    keys: int
    warps: int
    stages: int
    """How many blocks ahead keys are loaded."""


def prefix_shared_attention(head_dim: int) -> AttentionBlocks:
    """By head: what a block holds of queries, keys, values and sums must fit the registers and shared memory of one core."""
    if head_dim <= 64:
        return AttentionBlocks(queries=128, keys=64, warps=4, stages=3)
    if head_dim <= 128:
        return AttentionBlocks(queries=64, keys=64, warps=4, stages=2)
    return AttentionBlocks(queries=32, keys=32, warps=4, stages=2)
