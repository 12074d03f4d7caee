"""A run's rows, the same rows without their answers, and the order in which training takes them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from dataclasses import dataclass
from functools import lru_cache

from gradbus.control.condemned import CondemnedBlobs
from gradbus.control.runs import RunRecord
from gradbus.formats.jsonl import iterate, prompts_object
from gradbus.objects import ObjectStore
from gradbus.spec import RowColumns

_CACHED_EPOCHS = 2  # steps at the end of an epoch use two, and a large dataset takes long to shuffle


class DataOrder:
    """Maps a group index to a dataset row: a pure function of (dataset digest, seed, epoch).

    Every epoch is its own permutation, so no row repeats inside one.
    """

    def __init__(self, dataset_digest: str, rows: int, seed: int) -> None:
        self._digest = dataset_digest
        self._rows = rows
        self._seed = seed
        self._permutation = lru_cache(_CACHED_EPOCHS)(self._shuffled)

    def row(self, index: int) -> int:
        """The row that group `index` samples."""
        epoch, position = divmod(index, self._rows)
        return self._permutation(epoch)[position]

    def _shuffled(self, epoch: int) -> list[int]:
        key = hashlib.sha256(f"{self._digest}:{self._seed}:{epoch}".encode()).digest()
        permutation = list(range(self._rows))
        random.Random(key).shuffle(permutation)
        return permutation


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows as JSON text, which only the conductor and the scorer see, and the digest of the prompts that workers see."""

    items: tuple[str, ...]
    prompts: str
    """Digest of the prompts object."""


@dataclass(frozen=True, slots=True)
class RunData:
    """A run's data."""

    train: Dataset
    evaluation: Dataset | None
    order: DataOrder


async def load_run_data(objects: ObjectStore, condemned: CondemnedBlobs, record: RunRecord) -> RunData:
    """Reads the datasets and stores their prompts. May be repeated: all names are digests.

    Raises DatasetError, ObjectMissingError.
    """
    spec = record.spec
    columns = spec.columns
    train = await _dataset(objects, spec.data.train, columns)
    evaluation = await _dataset(objects, spec.data.eval, columns, spec.evaluation.samples) if spec.data.eval else None
    if await condemned.keep([train.prompts, *([evaluation.prompts] if evaluation else [])]):
        return await load_run_data(objects, condemned, record)  # prompts of an earlier run that were deleted meanwhile are stored again
    return RunData(train, evaluation, DataOrder(spec.data.train, len(train.items), spec.seed))


async def _dataset(objects: ObjectStore, digest: str, columns: RowColumns, most: int | None = None) -> Dataset:
    content = await objects.get_blob(digest)
    # In a thread: a large dataset takes longer than a lease lasts without renewal.
    items, prompts = await asyncio.to_thread(_rows, content, columns)
    return Dataset(items[:most], await objects.put_blob(prompts))


def _rows(content: bytes, columns: RowColumns) -> tuple[tuple[str, ...], bytes]:
    return tuple(json.dumps(row, ensure_ascii=False) for row in iterate(content)), prompts_object(content, columns)
