"""Graders of a text's form: its length, its tags and its script. Each takes time in proportion to the text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from gradbus.spec import LengthGrader

_SCRIPTS: Final = {"han": ("CJK",)}
"""Beginnings of the names of letters, where they are not the script's own name in Unicode's names."""


def length(text: str, grader: LengthGrader) -> float:
    """1.0 from `least` to `full`, then by a straight line to 0.0 at `zero`; 0.0 below `least`."""
    match grader.unit:
        case "characters":
            size = len(text)
        case "words":
            size = len(text.split())
        case "lines":
            size = len(text.splitlines())
    if size < grader.least:
        return 0.0
    return min(1.0, max(0.0, (grader.zero - size) / (grader.zero - grader.full)))


def tags(text: str, names: Sequence[str]) -> float:
    """The share of `names` of which the text has one pair `<name>…</name>`, which begins after the end of the one before it."""
    found, end = 0, 0
    for name in names:
        opened, closed = f"<{name}>", f"</{name}>"
        if text.count(opened) != 1 or text.count(closed) != 1:
            continue
        begin, close = text.index(opened), text.index(closed)
        if end <= begin < close:
            found, end = found + 1, close + len(closed)
    return found / len(names)


def script(text: str, name: str) -> float:
    """The share of the letters of `text` that are of the script, as Unicode names them; 1.0 for a text without letters."""
    letters = re.sub(r"[\W\d_]+", "", text)
    return sum(_is_of(letter, name) for letter in letters) / len(letters) if letters else 1.0


@lru_cache(4096)
def _is_of(letter: str, name: str) -> bool:
    return unicodedata.name(letter, "").startswith(_SCRIPTS.get(name, (name.upper(),)))
