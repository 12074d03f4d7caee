"""The codec of token ids, log-probabilities and routes, in messages and in storage: little-endian; the first two in four bytes each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

ID_DTYPE: Final = "<i4"
"""Token ids, as numpy names the type."""
LOGPROB_DTYPE: Final = "<f4"
"""Log-probabilities, as numpy names the type."""
_ITEM_BYTES: Final = 4
_BYTE_VALUES: Final = 256


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


def route_dtype(experts: int) -> str:
    """The number of one of so many experts, as numpy names its type."""
    return "<u1" if experts <= _BYTE_VALUES else "<u2"


def route_bytes(layers: int, experts: int, chosen: int) -> int:
    """Size of a token's routes: `chosen` of the `experts` of each of `layers`."""
    return layers * chosen * int(route_dtype(experts)[-1])
