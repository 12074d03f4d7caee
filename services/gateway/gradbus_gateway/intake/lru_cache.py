"""What was found out about content by its digest, and so never changes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
_MOST = 64


class Recent(Generic[Key, Value]):
    """The findings that were used last. Whether the content is still stored they do not say."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._items: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The finding, which stays longer for being used."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keeps a finding; the one that was not used for longest goes if there are too many."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._most:
            self._items.popitem(last=False)
