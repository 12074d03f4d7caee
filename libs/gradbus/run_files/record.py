"""A run's record in object storage, so that its archive can be read where no bus runs. Written by the conductor when the run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from gradbus.aio.tasks import map_bounded
from gradbus.control.runs import RunRecord
from gradbus.errors import CorruptRecordError, ObjectMissingError, ReplayError
from gradbus.experience.records import seal, unseal
from gradbus.objects import ObjectStore
from gradbus.objects.paths import is_safe_part
from gradbus.run_files.paths import RUNS, record_path

_SEARCHED: Final = 1000
_PARALLEL: Final = 16
_SHOWN: Final = 5


async def store_record(objects: ObjectStore, record: RunRecord) -> None:
    """Stores the record durably; storing it again changes nothing."""
    await objects.put(record_path(record.run_id), seal(record.to_bytes()), durable=True)


async def remove_record(objects: ObjectStore, run_id: str) -> None:
    """Removes the record of a run that is deleted."""
    await objects.delete(record_path(run_id))


async def read_record(objects: ObjectStore, run_id: str) -> RunRecord:
    """The record of a run. Raises ObjectMissingError and CorruptRecordError."""
    path = record_path(run_id)
    try:
        return RunRecord.model_validate_json(unseal(await objects.get(path), path))
    except ValidationError:
        raise CorruptRecordError(f"{path} is not a run's record of this release; it must be made again") from None


async def find_record(objects: ObjectStore, given: str) -> RunRecord:
    """The record of the run with the id or name `given`: the newest one of a name, the only one whose id begins with it, or `last`.

    Raises ReplayError when no run or more than one matches, or its record is gone.
    """
    run_ids = list(await objects.folders(RUNS))
    if not run_ids:
        raise ReplayError(f"{objects.url} holds no run; name the object storage of the run's stack by --state or --objects")
    if given == "last":
        return await _needed(objects, await _newest(objects, run_ids))
    if given in run_ids:
        return await _needed(objects, given)
    for record in await map_bounded(lambda run_id: _found(objects, run_id), run_ids[: -_SEARCHED - 1 : -1], _PARALLEL):
        if record is not None and record.spec.name == given:
            return record
    begun = [run_id for run_id in run_ids if given and run_id.startswith(given)]
    if len(begun) == 1:
        return await _needed(objects, begun[0])
    if begun:
        raise ReplayError(f"{given!r} is the beginning of {len(begun)} run ids: {', '.join(begun[:_SHOWN])}; give more characters")
    newest = ", ".join(run_ids[: -_SHOWN - 1 : -1])
    raise ReplayError(f"{objects.url} holds no run that is called {given!r}, the newest are {newest}; give one of these, or --objects")


async def _newest(objects: ObjectStore, run_ids: Sequence[str]) -> str:
    """The last with an object, for a deletion may leave its folder; the very last if none has one."""
    for run_id in reversed(run_ids):
        if await objects.has_any(f"{RUNS}/{run_id}"):
            return run_id
    return run_ids[-1]


async def _needed(objects: ObjectStore, run_id: str) -> RunRecord:
    try:
        return await read_record(objects, run_id)
    except (ObjectMissingError, CorruptRecordError):
        raise ReplayError(
            f"{record_path(run_id)} in {objects.url} is missing or damaged, and without its spec the run cannot be trained again; "
            "restore it from a copy, or let the run begin: a queued run has none yet"
        ) from None


async def _found(objects: ObjectStore, run_id: str) -> RunRecord | None:
    """None for a run whose record cannot be read: others may have the name that is looked for."""
    if not is_safe_part(run_id):
        return None
    try:
        return await read_record(objects, run_id)
    except (ObjectMissingError, CorruptRecordError):
        return None
