"""Faults of an environment's own code: tried again once, then the item is invalid."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from gradbus_environment.contract import Answer, Session, canonical, opening_document

_MAX_REMEMBERED = 4096
_REPEATED = 2
"""Times that the same fault makes an item invalid."""


class Faults:
    """Counts the faults of one run by item, seed, calls before and reason."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def answer(self, session: Session, asked: str, reason: str) -> Answer:
        """ERROR for a fault of a call of the session; INVALID if it came before, in this attempt or another one."""
        found = [opening_document(session.opening), session.digests[-1:], asked, reason]
        key = hashlib.sha256(canonical(found).encode("utf-8", "replace")).hexdigest()
        self._counts[key] = count = self._counts.get(key, 0) + 1
        self._counts.move_to_end(key)
        if len(self._counts) > _MAX_REMEMBERED:
            self._counts.popitem(last=False)
        return Answer.invalid(f"{reason}, {_REPEATED} times") if count >= _REPEATED else Answer.error(reason)
