"""Rows of the datasets of runs, to stand beside the samples that were made of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

from gradbus.datasets.row_file import RowFile
from gradbus.datasets.stored import open_rows
from gradbus.errors import CorruptRecordError, ObjectMissingError
from gradbus.objects import ObjectStore
from gradbus.spec import DataSpec
from gradbus.telemetry import get_logger
from gradbus_gateway.intake.lru_cache import LruCache
from gradbus_gateway.resources.samples import SampleResource

_log = get_logger(__name__)
_MOST_OPEN: Final = 8
_MOST_BYTES: Final = 1 << 30
"""Of a dataset: to find the places of its rows, and to check its digest, takes a second for each gigabyte or two."""


class DatasetRows:
    """The datasets that were asked for last stay open, each with 16 bytes of memory for 64 rows."""

    def __init__(self, objects: ObjectStore, cache_dir: Path) -> None:
        self._objects = objects
        self._cache_dir = cache_dir
        self._open = LruCache[str, RowFile](_MOST_OPEN)
        self._turn = asyncio.Lock()

    async def of(self, data: DataSpec) -> RowFile | None:
        """The rows of a stored run's training data; None if they are more than a gigabyte, or gone."""
        digest = data.digests.get("train", "")
        async with self._turn:  # one dataset at a time, whoever asks
            if (known := self._open.get(digest)) is not None:
                return known
            size = await self._objects.blob_size(digest) if digest else None
            if size is None or size > _MOST_BYTES:
                return None
            try:
                rows = await open_rows(self._objects, digest, self._cache_dir)
            except (ObjectMissingError, CorruptRecordError) as error:
                _log.warning("rows_unreadable", digest=digest, error=str(error))
                return None
            self._open.put(digest, rows)
            return rows


def add_item(sample: SampleResource, rows: RowFile) -> int:
    """Puts the sample's row beside it, as the scorer sees it; returns the bytes of the row. Of a row that is not there it adds nothing."""
    if not 0 <= sample.row_index < len(rows):
        return 0
    line = rows[sample.row_index]
    item = json.loads(line)
    sample.item = item if isinstance(item, dict) else None
    return len(line)
