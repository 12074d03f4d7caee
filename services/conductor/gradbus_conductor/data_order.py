"""The run's data order: a pure function of (dataset digest, seed, epoch)."""

from __future__ import annotations

import hashlib
import random


class DataOrder:
    """Maps a group index to a dataset row. Every epoch is its own permutation, so no row repeats inside one."""

    def __init__(self, dataset_digest: str, rows: int, seed: int) -> None:
        self._digest = dataset_digest
        self._rows = rows
        self._seed = seed
        self._epoch = -1
        self._permutation: list[int] = []

    def row(self, index: int) -> int:
        """The row that group `index` samples."""
        epoch, place = divmod(index, self._rows)
        if epoch != self._epoch:
            key = hashlib.sha256(f"{self._digest}:{self._seed}:{epoch}".encode()).digest()
            self._permutation = list(range(self._rows))
            random.Random(key).shuffle(self._permutation)
            self._epoch = epoch
        return self._permutation[place]
