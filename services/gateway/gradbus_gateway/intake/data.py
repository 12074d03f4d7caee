"""Checks every row of the datasets that a spec names, and stores their rows, each dataset as one file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gradbus.datasets.folder import data_files
from gradbus.datasets.prepare import DatasetFile, DatasetInfo, RowPlan
from gradbus.datasets.work import PrepareWork, done
from gradbus.errors import DatasetError, Fault
from gradbus.ids import is_digest
from gradbus.lru_cache import LruCache
from gradbus.objects import ObjectStore
from gradbus.objects.folder import partial_folder
from gradbus.spec import DataSpec, RowColumns, Sources
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.server_paths import allowed_paths, link_fault, under_roots
from gradbus_gateway.settings import GatewaySettings

_AT_A_TIME: Final = 2
"""Datasets that are read at a time, however many are submitted."""
_LARGE_BYTES: Final = 64 << 20
"""Of larger ones one is read at a time, so that others do not wait for them."""
_MAX_SECONDS: Final = 1800.0
"""Of the pass over one part."""
_SHOWN_DIGEST: Final = 19


@dataclass(frozen=True, slots=True)
class StoredData:
    """The datasets of a run, in object storage."""

    spec: DataSpec
    """With digests in the place of paths, and the names that columns have now."""
    columns: frozenset[str]
    """Columns that every row of every dataset has."""
    chat: bool
    """Whether any prompt is a list of chat messages."""
    longest_row: int
    """Bytes of the longest row of any dataset."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that follow each other in a dataset."""

    field: str
    """Of the spec, for faults."""
    sources: tuple[str, ...]
    plan: RowPlan


@dataclass(frozen=True, slots=True)
class _Dataset:
    digest: str
    infos: tuple[DatasetInfo, ...]
    """Of its parts."""


class DataIntake:
    """Checks and stores datasets. A dataset that was checked before is not read again while it is stored."""

    def __init__(self, objects: ObjectStore, settings: GatewaySettings) -> None:
        self._objects = objects
        self._settings = settings
        self._checked = LruCache[str, _Dataset]()
        """By the digests of its files and what is done with their rows."""
        self._turns, self._large = CheckTurns(_AT_A_TIME), CheckTurns(1, _MAX_SECONDS)

    async def store(self, data: DataSpec, columns: RowColumns, caller: str) -> tuple[StoredData | None, list[Fault]]:
        """The stored datasets, of which the run reads `columns`; or None and every fault.

        Raises the problem 503 if this gateway is too busy to tell.
        """
        faults: list[Fault] = []
        stored: dict[str, _Dataset] = {}
        for field, parts in _datasets(data, columns).items():
            key = _key(parts)
            found: _Dataset | list[Fault] | None = await self._earlier_check(key)
            if found is None:
                turns = self._large if await self._size(parts) > _LARGE_BYTES else self._turns
                async with turns.turn(caller):
                    found = await self._earlier_check(key) or await self._check(parts, key)
            if isinstance(found, _Dataset):
                stored[field] = found
            else:
                faults.extend(found)
        if not faults and "train" in stored:
            faults.extend(_part_faults(data, stored["train"]))
        if faults or "train" not in stored:
            return None, faults
        infos = [info for dataset in stored.values() for info in dataset.infos]
        common = frozenset.intersection(*(info.columns for info in infos))
        return StoredData(_as_stored(data, stored), common, any(info.chat for info in infos), max(info.longest for info in infos)), []

    async def _check(self, parts: Sequence[_Part], key: str) -> _Dataset | list[Fault]:
        """A dataset that is stored by now; faults if it cannot be used."""
        infos: list[DatasetInfo] = []
        async with partial_folder(self._settings.cache_dir / "datasets") as folder:
            out = folder / "rows"
            for at, part in enumerate(parts):
                try:
                    files = await self._files(part.sources, folder / f"part-{at}")
                    if isinstance(files, Fault):
                        return [replace(files, path=part.field)]
                    infos.append(await self._written(files, part.plan, out))
                except DatasetError as error:
                    return [Fault(part.field, str(error), ", ".join(part.sources)[:200])]
            dataset = _Dataset(await self._objects.put_file(out), tuple(infos))
        if key:
            self._checked.put(key, dataset)
        return dataset

    async def _written(self, files: Sequence[DatasetFile], plan: RowPlan, out: Path) -> DatasetInfo:
        """Appends the rows of a part to `out`."""
        written = await asyncio.to_thread(lambda: out.stat().st_size if out.exists() else 0)
        work = PrepareWork(files=files, plan=plan, out=out, most_bytes=self._settings.max_dataset_bytes - written)
        return await done(work, _MAX_SECONDS)

    async def _earlier_check(self, key: str) -> _Dataset | None:
        """The result of an earlier check of the same files, if the rows are still stored."""
        dataset = self._checked.get(key)
        return dataset if dataset is not None and await self._objects.has_blobs([dataset.digest]) else None

    async def _size(self, parts: Sequence[_Part]) -> int:
        """Bytes of the uploaded files."""
        digests = [source for part in parts for source in part.sources if is_digest(source)]
        return sum([await self._objects.blob_size(digest) or 0 for digest in digests])

    async def _files(self, sources: Sequence[str], spare: Path) -> list[DatasetFile] | Fault:
        """The files of a part: stored ones, or those below the roots; a fault, without its path, if there are none."""
        await asyncio.to_thread(spare.mkdir)
        files: list[DatasetFile] = []
        room = self._settings.max_dataset_bytes
        for at, source in enumerate(sources):
            found = await self._stored(source, spare / str(at), room) if is_digest(source) else await self._below_roots(source)
            if isinstance(found, Fault):
                return found
            files.extend(found)
            room = self._settings.max_dataset_bytes - await asyncio.to_thread(_total_size, files)
            if room < 0:
                return self._size_fault(self._settings.max_dataset_bytes - room, source)
        return [DatasetFile("" if len(files) == 1 else name, path) for name, path in files]

    async def _stored(self, digest: str, spare: Path, room: int) -> list[DatasetFile] | Fault:
        size = await self._objects.blob_size(digest)
        if size is None:
            return Fault("", "the file is not stored", digest, "the id that POST /v1/files returned")
        if size > room:
            return self._size_fault(size, digest)
        return [DatasetFile(digest[:_SHOWN_DIGEST], await self._objects.blob_file(digest, spare))]

    async def _below_roots(self, source: str) -> list[DatasetFile] | Fault:
        roots = self._settings.model_roots
        try:
            files = await asyncio.to_thread(_files_under, source, roots)
        except OSError as error:
            return Fault("", f"cannot be read: {error.strerror}", source, allowed_paths(roots))
        if files is None:
            return Fault("", "not a file or folder that the server may read", source, allowed_paths(roots))
        return files

    def _size_fault(self, size: int, source: str) -> Fault:
        most = self._settings.max_dataset_bytes
        return Fault("", f"the dataset has {size} bytes", source, f"at most {most} bytes (GRADBUS_MAX_DATASET_BYTES)")


def _datasets(data: DataSpec, columns: RowColumns) -> dict[str, list[_Part]]:
    """Field to parts of each dataset that the spec names."""
    parts: dict[str, list[_Part]] = {}
    if data.train:
        parts["train"] = [_part("data.train", data.train, data, columns)]
    elif all(part.source for part in data.mixture) and data.mixture:
        parts["train"] = [
            _part(f"data.mixture.{at}", part.source or "", data.model_copy(update={"columns": part.columns or data.columns}), columns)
            for at, part in enumerate(data.mixture)
        ]
    if data.eval:
        parts["eval"] = [_part("data.eval", data.eval, data, columns)]
    return parts


def _part(field: str, sources: Sources, data: DataSpec, columns: RowColumns) -> _Part:
    plan = RowPlan(columns=replace(columns, whole_row=False), names=data.columns, filter=data.filter)
    return _Part(field, (sources,) if isinstance(sources, str) else sources, plan)


def _key(parts: Sequence[_Part]) -> str:
    """What the stored rows are a function of; empty for files that may change."""
    if not all(map(is_digest, (source for part in parts for source in part.sources))):
        return ""
    return "\n".join(f"{','.join(part.sources)} {part.plan.model_dump_json()}" for part in parts)


def _part_faults(data: DataSpec, train: _Dataset) -> list[Fault]:
    """A fault of a spec that was stored before, whose mixture is of other rows than `train` has."""
    given = [part.rows for part in data.mixture if part.rows is not None]
    rows, found = sum(given), sum(info.rows for info in train.infos)
    if not data.train or not given or rows == found:
        return []
    message = "the parts have other rows than `train`, some of which the filter may leave out"
    return [Fault("data.mixture", message, f"{rows} rows", f"{found} rows in all, or sources in place of `train`")]


def _as_stored(data: DataSpec, stored: dict[str, _Dataset]) -> DataSpec:
    """The section of the stored spec: it describes the stored rows, so that it can be submitted again."""
    train = stored["train"]
    parts = data.mixture
    if not data.train:
        given = zip(parts, train.infos, strict=True)
        parts = tuple(part.model_copy(update={"source": None, "columns": {}, "rows": info.rows}) for part, info in given)
    digests = {field: dataset.digest for field, dataset in stored.items()}
    return data.model_copy(update={**digests, "mixture": parts, "columns": {}})


def _files_under(source: str, roots: Sequence[Path]) -> list[DatasetFile] | None:
    """The files of a path; None if it is not below the roots. Raises DatasetError for one that is a link out of them, and OSError."""
    path = under_roots(source, roots)
    if path is None:
        return None
    files: list[DatasetFile] = []
    for file in data_files(path):
        found = under_roots(str(file), roots)
        if found is None:
            raise DatasetError(link_fault(file))
        files.append(DatasetFile(file.name, found))
    return files


def _total_size(files: Sequence[DatasetFile]) -> int:
    return sum(path.stat().st_size for _, path in files)
