"""Checks every row of the datasets that a spec names, and stores them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gradbus.errors import DatasetError, Fault, ObjectMissingError
from gradbus.formats.jsonl import DatasetInfo, inspect
from gradbus.ids import is_digest
from gradbus.objects import ObjectStore
from gradbus.spec import DataSpec
from gradbus_gateway.intake.lru_cache import LruCache
from gradbus_gateway.intake.server_paths import allowed_paths, under_roots
from gradbus_gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class StoredData:
    """The datasets of a run, in object storage."""

    spec: DataSpec
    """With digests in the place of paths."""
    columns: frozenset[str]
    """Columns that every row of every dataset has."""
    chat: bool
    """Whether any prompt is a list of chat messages."""


class DataIntake:
    """Checks and stores datasets. A dataset that was checked before is not read again while it is stored."""

    def __init__(self, objects: ObjectStore, settings: GatewaySettings) -> None:
        self._objects = objects
        self._settings = settings
        self._checked = LruCache[tuple[str, str], DatasetInfo]()
        """By digest and prompt column."""

    async def store(self, data: DataSpec) -> tuple[StoredData | None, list[Fault]]:
        """The stored datasets, or None and every fault."""
        faults: list[Fault] = []
        digests: dict[str, str] = {}
        infos: list[DatasetInfo] = []
        sources = {"train": data.train} | ({"eval": data.eval} if data.eval is not None else {})
        for field, source in sources.items():
            if checked := await self._earlier_check(source, data.prompt):
                infos.append(checked)
                digests[field] = source
                continue
            content = await self._content(source)
            if isinstance(content, bytes):
                try:
                    info = await asyncio.to_thread(inspect, content, data.prompt)
                    infos.append(info)
                    digests[field] = await self._objects.put_blob(content)
                    self._checked.put((digests[field], data.prompt), info)
                    continue
                except DatasetError as error:
                    content = Fault(f"data.{field}", str(error), source)
            faults.append(Fault(f"data.{field}", content.message, content.given, content.allowed))
        if faults:
            return None, faults
        columns = frozenset.intersection(*(info.columns for info in infos))
        return StoredData(data.model_copy(update=digests), columns, any(info.chat for info in infos)), []

    async def _earlier_check(self, source: str, column: str) -> DatasetInfo | None:
        """The result of an earlier check of this content, if the content is still stored."""
        info = self._checked.get((source, column))
        return info if info is not None and await self._objects.has_blobs([source]) else None

    async def _content(self, source: str) -> bytes | Fault:
        """The bytes of a stored file or of a file below the roots; a fault, without its path, if there are none."""
        if is_digest(source):
            try:
                content = await self._objects.get_blob(source)
            except ObjectMissingError:
                return Fault("", "the file is not stored", source, "the id that POST /v1/files returned")
        else:
            path = await asyncio.to_thread(under_roots, source, self._settings.model_roots)
            if path is None or not await asyncio.to_thread(path.is_file):
                return Fault("", "not a file the server may read", source, allowed_paths(self._settings.model_roots))
            content = await asyncio.to_thread(path.read_bytes)
        if len(content) > self._settings.max_dataset_bytes:
            limit = f"at most {self._settings.max_dataset_bytes} bytes (GRADBUS_MAX_DATASET_BYTES)"
            return Fault("", f"the dataset has {len(content)} bytes", source, limit)
        return content
