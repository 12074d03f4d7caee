"""The codec of token ids and log-probabilities, in messages and in storage: little-endian, four bytes each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

ID_DTYPE: Final = "<i4"
"""Token ids, as numpy names the type."""
LOGPROB_DTYPE: Final = "<f4"
"""Log-probabilities, as numpy names the type."""
_ITEM_BYTES: Final = 4


def token_count(content: bytes) -> int:
    """Number of ids, or of log-probabilities, in `content`."""
    return len(content) // _ITEM_BYTES


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as int32 `[T]`."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack_ids(content: bytes) -> tuple[int, ...]:
    """Token ids from int32 `[T]`."""
    return struct.unpack(f"<{token_count(content)}i", content)


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """float32, `[T]`, each rounded to the nearest."""
    return struct.pack(f"<{len(logprobs)}f", *logprobs)


def unpack_logprobs(content: bytes) -> tuple[float, ...]:
    """Log-probabilities from float32 `[T]`."""
    return struct.unpack(f"<{token_count(content)}f", content)
