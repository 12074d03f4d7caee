"""A run's rows, the same rows without their answers, and the order in which training takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gradbus.control.condemned import CondemnedBlobs
from gradbus.control.runs import RunRecord
from gradbus.datasets.row_file import RowFile
from gradbus.datasets.work import PromptsWork, done
from gradbus.objects import ObjectStore
from gradbus.objects.cache_dir import written_below_cache
from gradbus.objects.folder import partial_folder
from gradbus.spec import DataSpec, RowColumns
from gradbus_conductor.groups.order import DataOrder, MixtureOrder, Order

_PROMPTS_SECONDS = 1800.0


class Items(Protocol):
    """Rows as JSON text, which only the conductor and the scorer see."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> str: ...


class StoredItems:
    """The first rows of a stored dataset, each read when it is asked for."""

    def __init__(self, rows: RowFile, most: int | None = None) -> None:
        self._rows = rows
        self._count = len(rows) if most is None else min(most, len(rows))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> str:
        return self._rows[row].decode()


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows, and the digest of the prompts that workers see."""

    items: Items
    prompts: str
    """Digest of the prompts object."""


@dataclass(frozen=True, slots=True)
class RunData:
    """A run's data."""

    train: Dataset
    evaluation: Dataset | None
    order: Order


@dataclass(frozen=True, slots=True)
class DataReader:
    """Reads the datasets of runs and stores their prompts. May be repeated: all names are digests."""

    objects: ObjectStore
    condemned: CondemnedBlobs
    cache_dir: Path

    async def load(self, record: RunRecord) -> RunData:
        """The data of a run. Raises DatasetError, ObjectMissingError, DiskError."""
        spec = record.spec
        digests = spec.data.digests
        train = await self._dataset(digests["train"], spec.columns)
        evaluation = await self._dataset(digests["eval"], spec.columns, spec.evaluation.samples) if "eval" in digests else None
        if await self.condemned.keep([train.prompts, *([evaluation.prompts] if evaluation else [])]):
            return await self.load(record)  # prompts of an earlier run that were deleted meanwhile are stored again
        return RunData(train, evaluation, _order(spec.data, digests["train"], len(train.items), spec.seed))

    async def _dataset(self, digest: str, columns: RowColumns, most: int | None = None) -> Dataset:
        with written_below_cache("a dataset"):
            async with partial_folder(self.cache_dir / "datasets") as folder:
                path, out = await self.objects.blob_file(digest, folder / "rows"), folder / "prompts"
                rows = await asyncio.to_thread(RowFile, path)
                await done(PromptsWork(rows=path, columns=columns, out=out), _PROMPTS_SECONDS)
                return Dataset(StoredItems(rows, most), await self.objects.put_file(out))


def _order(data: DataSpec, digest: str, rows: int, seed: int) -> Order:
    parts: Sequence[tuple[int, float]] = [(part.rows or 0, part.weight) for part in data.mixture]
    return MixtureOrder(digest, parts, seed) if parts else DataOrder(digest, rows, seed)
