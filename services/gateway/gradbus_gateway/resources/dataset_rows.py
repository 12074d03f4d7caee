"""Rows of the datasets of runs, to stand beside the samples that were made of them."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from gradbus.datasets.row_file import RowFile
from gradbus.datasets.stored import open_rows
from gradbus.errors import CorruptRecordError, DiskError, ObjectMissingError, StorageError
from gradbus.objects import ObjectStore
from gradbus.resources.samples import SampleResource
from gradbus.spec import DataSpec
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_MOST_OPEN: Final = 8
_MOST_HELD_BYTES: Final = 2 << 30
"""Of all open datasets: a copy from a bucket takes its place on the disk until it is closed."""
_MOST_BYTES: Final = 1 << 30
"""Of a dataset: to find the places of its rows, and to check its digest, takes a second for each gigabyte or two."""
_PARALLEL: Final = 2
"""Datasets opened at once."""


class DatasetRows:
    """The datasets that were asked for last stay open, each with 16 bytes of memory for 64 rows."""

    def __init__(self, objects: ObjectStore, cache_dir: Path) -> None:
        self._objects = objects
        self._cache_dir = cache_dir
        self._open = OrderedDict[str, RowFile]()
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        self._places = asyncio.Semaphore(_PARALLEL)

    async def of(self, data: DataSpec) -> RowFile | None:
        """The rows of a stored run's training data; None if they are more than a gigabyte, or gone, or cannot be read now."""
        digest = data.digests.get("train", "")
        async with self._turns.setdefault(digest, asyncio.Lock()):  # opened once, whoever asks
            if digest in self._open:
                self._open.move_to_end(digest)
                return self._open[digest]
            async with self._places:
                rows = await self._opened(digest)
            if rows is not None:
                self._keep(digest, rows)
            return rows

    async def _opened(self, digest: str) -> RowFile | None:
        try:
            size = await self._objects.blob_size(digest) if digest else None
            return await open_rows(self._objects, digest, self._cache_dir) if size is not None and size <= _MOST_BYTES else None
        except (ObjectMissingError, CorruptRecordError, StorageError, DiskError) as error:
            _log.warning("rows_unreadable", digest=digest, error=str(error))
            return None

    def _keep(self, digest: str, rows: RowFile) -> None:
        """Closes those that were asked for longest ago, if they are too many, or too large together."""
        self._open[digest] = rows
        while len(self._open) > _MOST_OPEN or sum(one.size_bytes for one in self._open.values()) > _MOST_HELD_BYTES:
            self._open.popitem(last=False)


def add_item(sample: SampleResource, rows: RowFile) -> int:
    """Puts the sample's row beside it, as the scorer sees it; returns the bytes of the row. Of a row that is not there it adds nothing."""
    if not 0 <= sample.row_index < len(rows):
        return 0
    line = rows[sample.row_index]
    item = json.loads(line)
    sample.item = item if isinstance(item, dict) else None
    return len(line)
