"""What histories take of the gateway's process and disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self


class Size(NamedTuple):
    """An amount, or the most of it."""

    runs: int = 0
    files: int = 0
    disk_bytes: int = 0
    memory_bytes: int = 0

    @classmethod
    def total(cls, sizes: Iterable[Size]) -> Self:
        """The sum."""
        return cls(*map(sum, zip(*sizes, strict=True)))

    def changed(self, before: Size, after: Size) -> Self:
        """The amount once a part of it, which was `before`, is `after`."""
        return type(self)(*(whole - old + new for whole, old, new in zip(self, before, after, strict=True)))

    def fits(self, most: Size) -> bool:
        """Whether no part is more than that of `most`."""
        return all(mine <= bound for mine, bound in zip(self, most, strict=True))
