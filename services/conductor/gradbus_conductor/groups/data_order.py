"""The run's data order: a pure function of (dataset digest, seed, epoch)."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

_EPOCHS = 2  # at the seam of two both are asked for, and a large dataset takes long to shuffle


class DataOrder:
    """Maps a group index to a dataset row. Every epoch is its own permutation, so no row repeats inside one."""

    def __init__(self, dataset_digest: str, rows: int, seed: int) -> None:
        self._digest = dataset_digest
        self._rows = rows
        self._seed = seed
        self._permutation = lru_cache(_EPOCHS)(self._shuffled)

    def row(self, index: int) -> int:
        """The row that group `index` samples."""
        epoch, place = divmod(index, self._rows)
        return self._permutation(epoch)[place]

    def _shuffled(self, epoch: int) -> list[int]:
        key = hashlib.sha256(f"{self._digest}:{self._seed}:{epoch}".encode()).digest()
        permutation = list(range(self._rows))
        random.Random(key).shuffle(permutation)
        return permutation
