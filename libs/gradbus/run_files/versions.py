"""The digests of a run's versions and its checkpoints, as object storage alone knows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import Message

from gradbus.aio.tasks import map_bounded
from gradbus.errors import CorruptRecordError, ObjectMissingError
from gradbus.experience.records import seal, unseal_message
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.run_files.paths import checkpoints_path, digests_path, versions_path
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import CheckpointManifest, DeletedVersions, WeightManifest

_log = get_logger(__name__)
_PARALLEL: Final = 16
_HASH_DIGITS: Final = 16
_Content = TypeVar("_Content", bound=Message)


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """What is known of a run's versions. Of one step the newest term counts: an older one's was replaced, or never trained further."""

    digests: Mapping[int, str]
    """Digest of the weights, by step; of deleted versions too."""
    checkpoints: Mapping[int, CheckpointManifest]
    """The checkpoints that retention has kept, by step."""


async def read_versions(objects: ObjectStore, run_id: str) -> StoredVersions:
    """All of a run. Manifests that are torn, as a power cut leaves them, are left out. Raises StorageError."""
    checkpoints, deleted, versions = await asyncio.gather(
        _read_all(objects, CheckpointManifest, checkpoints_path(run_id)),
        _read_all(objects, DeletedVersions, digests_path(run_id)),
        _read_all(objects, WeightManifest, versions_path(run_id)),
    )
    of_step = {one.step: one for one in sorted(checkpoints, key=lambda one: one.term)}
    return StoredVersions(_digests(checkpoints, deleted, versions), of_step)


async def read_digest(objects: ObjectStore, run_id: str, step: int) -> str | None:
    """The digest of one version, as `read_versions` has it; None if it is not known. Reads only what may name it. Raises StorageError."""
    checkpoints, deleted, versions = await asyncio.gather(
        _read_all(objects, CheckpointManifest, checkpoints_path(run_id)),
        _read_all(objects, DeletedVersions, digests_path(run_id), lambda name: _may_have(name, step)),
        _read_all(objects, WeightManifest, versions_path(run_id), lambda name: name.startswith(f"{step}-")),
    )
    return _digests(checkpoints, deleted, versions).get(step)


def _digests(
    checkpoints: Iterable[CheckpointManifest], deleted: Iterable[DeletedVersions], versions: Iterable[WeightManifest]
) -> Mapping[int, str]:
    named = (version for checkpoint in checkpoints for version in (checkpoint.weights, *checkpoint.pinned))
    known = [*versions, *named, *(version for record in deleted for version in record.versions)]
    return {one.step: one.digest for one in sorted(known, key=lambda one: one.term)}


def _may_have(name: str, step: int) -> bool:
    """Whether the step is among those that the name of deleted versions tells: <first>-<last>-<hash>."""
    first, last, _ = name.split("-")
    return int(first) <= step <= int(last)


async def store_deleted(objects: ObjectStore, run_id: str, versions: Iterable[WeightManifest]) -> None:
    """Keeps the digests of versions whose manifests are about to be deleted; does nothing for none. Raises StorageError."""
    ordered = sorted(versions, key=lambda one: (one.step, one.term))
    if not ordered:
        return
    kept = [WeightManifest(term=one.term, step=one.step, digest=one.digest, noop=one.noop) for one in ordered]
    payload = DeletedVersions(run_id=run_id, versions=kept).SerializeToString()
    # Named by its content: a deletion that was cut short is followed by one of other versions between the same steps.
    content = digest_of(payload).removeprefix("sha256:")[:_HASH_DIGITS]
    path = f"{digests_path(run_id)}/{ordered[0].step}-{ordered[-1].step}-{content}"
    await objects.put(path, seal(payload), durable=True)


async def remove_deleted(objects: ObjectStore, run_id: str) -> None:
    """Removes the digests of a run that is deleted."""
    for path in await objects.list(digests_path(run_id)):
        await objects.delete(path)


async def _read_all(
    objects: ObjectStore, kind: type[_Content], folder: str, is_wanted: Callable[[str], bool] = lambda _: True
) -> Sequence[_Content]:
    """The objects of the folder whose names are wanted."""

    async def read(path: str) -> _Content | None:
        try:
            return unseal_message(kind, await objects.get(path), path)
        except (CorruptRecordError, ObjectMissingError) as error:
            _log.warning("manifest_skipped", path=path, error=str(error))
            return None

    paths = [path for path in await objects.list(folder) if is_wanted(path.rpartition("/")[2])]
    return [found for found in await map_bounded(read, paths, _PARALLEL) if found is not None]
