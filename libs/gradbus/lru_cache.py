"""A cache that forgets first what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
_DEFAULT_SIZE = 64


class LruCache(Generic[Key, Value]):
    """Keeps the entries that were used last, as many as weigh `size` together; each weighs 1 unless `weight` says otherwise."""

    def __init__(self, size: int = _DEFAULT_SIZE, weight: Callable[[Value], int] = lambda _: 1) -> None:
        self._size = size
        self._weight = weight
        self._total = 0
        self._items: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The entry, or None. Counts as a use."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Stores an entry. Beyond `size` the least recently used ones are removed."""
        if key in self._items:
            self._total -= self._weight(self._items.pop(key))
        self._items[key] = value
        self._total += self._weight(value)
        while self._total > self._size:
            _, dropped = self._items.popitem(last=False)
            self._total -= self._weight(dropped)
