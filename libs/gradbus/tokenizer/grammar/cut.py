"""A message that is longer than a run allows: its beginning and its end, with a note of what was left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MARKER: Final = "\n[... {} tokens cut ...]\n"
"""What stands in place of the middle."""


def cut(content: str, most: int, encoding: Callable[[str], Any], written: Callable[[str], str] = str) -> str:
    """The content, cut where it has more than `most` tokens in the form `written`.

    `encoding` gives the `Encoding` of a text, whose offsets are in characters. A marker that leaves no room is left out.
    """
    if len(encoding(written(content))) <= most:
        return content
    offsets: list[tuple[int, int]] = encoding(content).offsets
    total = len(offsets)
    room = most - len(encoding(written(MARKER.format(total))))
    marker = MARKER if room >= 0 else ""
    kept = min(room if marker else most, total)
    while kept > 0:
        head = (kept + 1) // 2 if marker else kept
        tail = kept - head
        end = offsets[total - tail][0] if tail else len(content)
        text = content[: offsets[head - 1][1]] + marker.format(total - kept) + content[end:]
        tokens = len(encoding(written(text)))
        if tokens <= most:
            return text
        kept -= max(tokens - most, 1)
    return marker.format(total)
