"""The known name that is most like an unknown one, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import Final

_MAX_CHARACTERS: Final = 40
_MAX_NAMES: Final = 100


def nearest_name(given: str, known: Iterable[str]) -> str:
    """The one of the first hundred short names in `known` that is most like `given`, or nothing.

    The time of a comparison grows with the product of the lengths, and both names may be a user's.
    """
    short = islice((name for name in known if len(name) <= _MAX_CHARACTERS), _MAX_NAMES)
    return next(iter(difflib.get_close_matches(given[:_MAX_CHARACTERS], short, n=1)), "")
