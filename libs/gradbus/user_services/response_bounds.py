"""How many bytes of a user's service are read for one response."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 64 << 10
"""Beside the response's body: headers, interim responses, settings of the connection, answers to what was sent."""
_FRAMING: Final = 2
"""A body in chunks or frames may take so many times its size."""


def whole_bytes(body_bytes: int) -> int:
    """The most bytes that a response with such a body may take on its connection."""
    return HEAD_BYTES + _FRAMING * body_bytes
