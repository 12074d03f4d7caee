"""A cache of check results by content digest. They never become stale, for a digest names the same content for ever."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
_DEFAULT_SIZE = 64


class LruCache(Generic[Key, Value]):
    """Keeps the `size` entries that were used last."""

    def __init__(self, size: int = _DEFAULT_SIZE) -> None:
        self._size = size
        self._items: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The entry, or None. Counts as a use."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Stores an entry. Beyond `size` the least recently used entry is removed."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)
