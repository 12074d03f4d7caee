"""The order in which training takes the rows of a dataset: a pure function of (digest, seed, epoch), and of a mixture's parts."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, Protocol

_CACHED_EPOCHS: Final = 2  # steps at the end of an epoch use two, and a dataset takes long to shuffle
_SHUFFLED_ROWS: Final = 1 << 20
"""Larger datasets are permuted by a cipher: a shuffle takes time and memory for each row."""
_ROUNDS: Final = 6


class Order(Protocol):
    """Maps a group index to a row."""

    def row(self, index: int) -> int:
        """The row that group `index` takes."""
        ...


class DataOrder:
    """Every epoch is its own permutation, so no row repeats inside one."""

    def __init__(self, dataset_digest: str, rows: int, seed: int) -> None:
        self._digest = dataset_digest
        self._rows = rows
        self._seed = seed
        self._permutation = lru_cache(_CACHED_EPOCHS)(self._shuffled)

    def row(self, index: int) -> int:
        """The row that group `index` takes."""
        epoch, position = divmod(index, self._rows)
        if self._rows > _SHUFFLED_ROWS:
            return permuted(position, self._rows, self._key(epoch))
        return self._permutation(epoch)[position]

    def _shuffled(self, epoch: int) -> array[int]:
        permutation = array("L", range(self._rows))
        random.Random(self._key(epoch)).shuffle(permutation)
        return permutation

    def _key(self, epoch: int) -> bytes:
        return hashlib.sha256(f"{self._digest}:{self._seed}:{epoch}".encode()).digest()


class MixtureOrder:
    """Draws from the parts of a dataset by their weights, evenly: of any n groups in a row, a part has its share within one for each part
    before it. Each part has an order and epochs of its own.
    """

    def __init__(self, dataset_digest: str, parts: Sequence[tuple[int, float]], seed: int) -> None:
        """`parts` are (rows, weight), in the order of their rows in the dataset."""
        starts = [sum(rows for rows, _ in parts[:at]) for at in range(len(parts))]
        orders = [DataOrder(f"{dataset_digest}:{at}", rows, seed) for at, (rows, _) in enumerate(parts)]
        weights = [Fraction(weight) for _, weight in parts]
        self._parts = [
            (start, order, weights[at] / sum(weights[at:])) for at, (start, order) in enumerate(zip(starts, orders, strict=True))
        ]

    def row(self, index: int) -> int:
        """The row that group `index` takes."""
        for start, order, share in self._parts:
            taken, after = int(index * share), int((index + 1) * share)
            if after > taken:
                return start + order.row(taken)
            index -= taken  # its place among the groups of the parts that follow
        raise AssertionError("the last part takes all groups that no other does")


def permuted(position: int, rows: int, key: bytes) -> int:
    """Where a keyed permutation of `[0, rows)` sends `position`, without any memory.

    A Feistel network (Luby and Rackoff 1988) over the next even number of bits, walked until it is inside (Black and Rogaway 2002).
    """
    half = -(-(rows - 1).bit_length() // 2)
    mask = (1 << half) - 1
    while True:
        left, right = position >> half, position & mask
        for number in range(_ROUNDS):
            digest = hashlib.blake2b(right.to_bytes(8, "little") + bytes([number]), digest_size=8, key=key).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        position = left << half | right
        if position < rows:
            return position
