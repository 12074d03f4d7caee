"""Token buckets: each key may do so much a second, and more at once after a pause."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_MAX_KEYS: Final = 10_000


class TokenBuckets:
    """A bucket for each key, which holds up to `burst` tokens and gains `rate` a second. With a rate of 0 every bucket is always full.

    Implemented as the generic cell rate algorithm (ITU-T I.371): one number for each key. Beyond `_MAX_KEYS` keys the bucket that was used
    least recently is forgotten, so that addresses without number fill no memory.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._tolerance = (burst - 1) * self._interval
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When each bucket will be full again; a key without an entry has a full bucket."""

    def take(self, key: str) -> float:
        """Takes a token and returns 0; if there is none, returns the seconds until there is one."""
        wait = self.wait(key)
        if not wait and self._interval:
            self._full_at[key] = max(self._full_at.get(key, 0.0), self._clock()) + self._interval
            self._full_at.move_to_end(key)
            if len(self._full_at) > _MAX_KEYS:
                self._full_at.popitem(last=False)
        return wait

    def wait(self, key: str) -> float:
        """Seconds until the bucket of `key` has a token; 0 if it has one."""
        return max(0.0, self._full_at.get(key, 0.0) - self._tolerance - self._clock())
