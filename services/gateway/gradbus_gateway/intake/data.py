"""Checks every row of the datasets that a spec names, and stores them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from gradbus.errors import DatasetError, Fault
from gradbus.formats.jsonl import DatasetInfo, inspect
from gradbus.ids import is_digest
from gradbus.objects import ObjectStore
from gradbus.spec import DataSpec, RowColumns
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.lru_cache import LruCache
from gradbus_gateway.intake.server_paths import allowed_paths, under_roots
from gradbus_gateway.settings import GatewaySettings

_AT_A_TIME: Final = 2
"""Datasets that are in memory at a time, however many are submitted."""


@dataclass(frozen=True, slots=True)
class StoredData:
    """The datasets of a run, in object storage."""

    spec: DataSpec
    """With digests in the place of paths."""
    columns: frozenset[str]
    """Columns that every row of every dataset has."""
    chat: bool
    """Whether any prompt is a list of chat messages."""
    longest_row: int
    """Bytes of the longest row of any dataset."""


class DataIntake:
    """Checks and stores datasets. A dataset that was checked before is not read again while it is stored."""

    def __init__(self, objects: ObjectStore, settings: GatewaySettings) -> None:
        self._objects = objects
        self._settings = settings
        self._checked = LruCache[tuple[str, RowColumns], DatasetInfo]()
        """By digest and columns."""
        self._turns = CheckTurns(_AT_A_TIME)

    async def store(self, data: DataSpec, columns: RowColumns, caller: str) -> tuple[StoredData | None, list[Fault]]:
        """The stored datasets, of which the run reads `columns`; or None and every fault.

        Raises the problem 503 if this gateway is too busy to tell.
        """
        faults: list[Fault] = []
        digests: dict[str, str] = {}
        infos: list[DatasetInfo] = []
        sources = {"train": data.train} | ({"eval": data.eval} if data.eval is not None else {})
        for field, source in sources.items():
            found: tuple[str, DatasetInfo] | Fault | None = await self._earlier_check(source, columns)
            if found is None:
                async with self._turns.turn(caller):
                    found = await self._earlier_check(source, columns) or await self._check(source, columns)
            if isinstance(found, Fault):
                faults.append(replace(found, path=f"data.{field}"))
            else:
                digests[field], info = found
                infos.append(info)
        if faults:
            return None, faults
        common = frozenset.intersection(*(info.columns for info in infos))
        stored = data.model_copy(update=digests)
        return StoredData(stored, common, any(info.chat for info in infos), max(info.longest for info in infos)), []

    async def _check(self, source: str, columns: RowColumns) -> tuple[str, DatasetInfo] | Fault:
        """Digest and content of a dataset that is stored by now; a fault, without its path, if it cannot be used."""
        content = await self._content(source)
        if isinstance(content, Fault):
            return content
        try:
            info = await asyncio.to_thread(inspect, content, columns)
        except DatasetError as error:
            return Fault("", str(error), source)
        digest = await self._objects.put_blob(content)
        self._checked.put((digest, columns), info)
        return digest, info

    async def _earlier_check(self, source: str, columns: RowColumns) -> tuple[str, DatasetInfo] | None:
        """The result of an earlier check of this digest, if the content is still stored."""
        info = self._checked.get((source, columns))
        return (source, info) if info is not None and await self._objects.has_blobs([source]) else None

    async def _content(self, source: str) -> bytes | Fault:
        """The bytes of a stored file or of a file below the roots; a fault, without its path, if there are none."""
        if is_digest(source):
            size = await self._objects.blob_size(source)
            if size is None:
                return Fault("", "the file is not stored", source, "the id that POST /v1/files returned")
            fault = self._size_fault(size, source)
            return await self._objects.get_blob(source) if fault is None else fault
        path = await asyncio.to_thread(under_roots, source, self._settings.model_roots)
        if path is None or not await asyncio.to_thread(path.is_file):
            return Fault("", "not a file the server may read", source, allowed_paths(self._settings.model_roots))
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
            fault = self._size_fault(size, source)
            return await asyncio.to_thread(path.read_bytes) if fault is None else fault
        except OSError as error:
            return Fault("", f"cannot be read: {error.strerror}", source, allowed_paths(self._settings.model_roots))

    def _size_fault(self, size: int, source: str) -> Fault | None:
        """Before anything is read: an upload may be larger than memory."""
        most = self._settings.max_dataset_bytes
        if size <= most:
            return None
        return Fault("", f"the dataset has {size} bytes", source, f"at most {most} bytes (GRADBUS_MAX_DATASET_BYTES)")
