"""From what a spec says of its data to objects in storage, every row checked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gradbus.errors import DatasetError, Fault, ObjectMissingError
from gradbus.formats.jsonl import DatasetInfo, inspect
from gradbus.ids import is_digest
from gradbus.objects import ObjectStore
from gradbus.spec import DataSpec
from gradbus_gateway.intake.lru_cache import Recent
from gradbus_gateway.intake.server_paths import advice, under_roots
from gradbus_gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class TakenData:
    """The data in object storage."""

    spec: DataSpec
    columns: frozenset[str]
    """Columns that every row has, held-out rows among them."""
    chat: bool


CheckedData = Recent[tuple[str, str], DatasetInfo]
"""By digest and prompt column."""


class DataIntake:
    """Takes datasets in."""

    def __init__(self, objects: ObjectStore, settings: GatewaySettings, checked: CheckedData) -> None:
        self._objects = objects
        self._settings = settings
        self._checked = checked

    async def take(self, data: DataSpec) -> tuple[TakenData | None, list[Fault]]:
        """The data, or every reason why it cannot be had."""
        faults: list[Fault] = []
        digests: dict[str, str] = {}
        infos: list[DatasetInfo] = []
        given = {"train": data.train} | ({"eval": data.eval} if data.eval is not None else {})
        for field, source in given.items():
            if known := await self._known(source, data.prompt):
                infos.append(known)
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
        return TakenData(data.model_copy(update=digests), columns, any(info.chat for info in infos)), []

    async def _known(self, source: str, column: str) -> DatasetInfo | None:
        """What was found when this content came before, if it is still stored."""
        info = self._checked.get((source, column))
        return info if info is not None and await self._objects.has_blobs([source]) else None

    async def _content(self, source: str) -> bytes | Fault:
        if is_digest(source):
            try:
                content = await self._objects.get_blob(source)
            except ObjectMissingError:
                return Fault("", "the file is not stored", source, "the id that POST /v1/files answered with")
        else:
            path = await asyncio.to_thread(under_roots, source, self._settings.model_roots)
            if path is None or not await asyncio.to_thread(path.is_file):
                return Fault("", "not a file the server may read", source, advice(self._settings.model_roots))
            content = await asyncio.to_thread(path.read_bytes)
        if len(content) > self._settings.max_dataset_bytes:
            limit = f"at most {self._settings.max_dataset_bytes} bytes (GRADBUS_MAX_DATASET_BYTES)"
            return Fault("", f"the dataset has {len(content)} bytes", source, limit)
        return content
