"""The groups that have been trained: every index below a bound, some above it, and a hash chain over all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from gradbus.v1 import weights_pb2


class Frontier:
    """Indexes that entered a step, were filtered or were dropped. Never a cursor: a hole stays visible as a hole."""

    def __init__(self, below: int = 0, above: Iterable[int] = (), chain: str = "", extents: Iterable[int] = ()) -> None:
        self.below = below
        self.above = set(above)
        self.chain = chain
        self.extents = list(extents)
        """With dynamic sampling: the extents of the last steps' versions, oldest first."""

    def __contains__(self, index: int) -> bool:
        return index < self.below or index in self.above

    def add(self, step: int, entries: Iterable[tuple[int, str]]) -> None:
        """Adds the (index, record digest) pairs that step `step` consumed; an index that is in already changes nothing."""
        for index, digest in sorted(entries):
            if index in self:
                continue
            self.chain = hashlib.sha256(f"{self.chain}:{step}:{index}:{digest}".encode()).hexdigest()
            self.above.add(index)
        while self.below in self.above:
            self.above.remove(self.below)
            self.below += 1

    def to_message(self) -> weights_pb2.Frontier:
        """As stored in a checkpoint's manifest."""
        return weights_pb2.Frontier(below=self.below, above=sorted(self.above), chain=self.chain, extents=self.extents)

    @classmethod
    def from_message(cls, message: weights_pb2.Frontier) -> Frontier:
        """The reverse of `to_message`."""
        return cls(message.below, message.above, message.chain, message.extents)
