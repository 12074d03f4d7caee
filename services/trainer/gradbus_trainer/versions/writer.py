"""Stores versions: whole, or as a delta to the version before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gradbus.aio.threads import in_run_thread
from gradbus.ids import digest_of_file
from gradbus.objects import ObjectStore
from gradbus.spec import WeightsSpec
from gradbus.telemetry import get_logger, weights_moved
from gradbus.v1.weights_pb2 import Shard, ShardDelta, WeightManifest
from gradbus_kernels.weights.delta.bytes import DeltaError
from gradbus_kernels.weights.delta.file import encode_file_delta
from gradbus_kernels.weights.delta.loops import prepare_loops
from gradbus_trainer.tensors.export import Export
from gradbus_trainer.tensors.scratch import TensorFile
from gradbus_trainer.versions.object_storage import until_stored

_log = get_logger(__name__)
_MAX_DELTA_SHARE = 0.9
"""Largest delta, as a share of its file; a larger one saves less than a whole file, from which a new chain begins."""


@dataclass(frozen=True, slots=True)
class _Base:
    """The newest published version, to which the next delta is made."""

    export: Export
    shard: Shard


class VersionWriter:
    """One run's versions, in order. With `transport = "delta"` it keeps the newest one's file."""

    def __init__(
        self, objects: ObjectStore, run_id: str, term: int, spec: WeightsSpec | None = None, frozen: TensorFile | None = None
    ) -> None:
        """`frozen` has the tensors that every version carries along; it is stored once and named by each manifest."""
        self._objects = objects
        self._run_id = run_id
        self._term = term
        self._spec = spec or WeightsSpec()
        self._frozen = frozen
        self._frozen_shards: list[Shard] = []
        self._base: _Base | None = None
        self._told = False

    async def store(self, export: Export, whole: bool) -> WeightManifest:
        """Stores the version, as a delta alone where possible unless `whole`; returns its manifest.

        Waits while object storage is unavailable.
        """
        if self._spec.transport == "delta":
            prepare_loops(export.file.size_bytes)  # with version 0, a step before the first delta
        shards = [await self._shard(export, whole), *await self._carried()]
        return WeightManifest(run_id=self._run_id, term=self._term, step=export.step, digest=export.digest, shards=shards, noop=export.noop)

    def advance(self, export: Export, manifest: WeightManifest) -> None:
        """Makes this version, which is now published, the base of the next delta; removes the file that no later version needs."""
        if self._spec.transport == "delta":
            self._drop_base()
            self._base = _Base(export, manifest.shards[0])
        else:
            export.file.remove()

    def end_chain(self) -> None:
        """Stores the next version whole, and what it carries along too: a part of the chain is missing."""
        self._drop_base()
        self._frozen_shards = []

    def _drop_base(self) -> None:
        if self._base is not None:
            self._base.export.file.remove()
        self._base = None

    async def _carried(self) -> list[Shard]:
        if self._frozen is not None and not self._frozen_shards:
            digest = await until_stored(partial(self._objects.put_file, self._frozen.path), f"frozen tensors of {self._run_id}")
            self._frozen_shards = [Shard(digest=digest, size_bytes=self._frozen.size_bytes, tensors=self._frozen.names)]
        return self._frozen_shards

    async def _shard(self, export: Export, whole: bool) -> Shard:
        what = f"version {export.step} of {self._run_id}"
        chain = await self._chain(export, what)
        # The step decides, so that a replay stores the same blobs.
        delta_only = bool(chain) and not whole and export.step % self._spec.anchor_every != 0
        if delta_only:
            digest = await in_run_thread(lambda: digest_of_file(export.file.path), "digest version")
        else:
            digest = await until_stored(lambda: self._objects.put_file(export.file.path), what)
            weights_moved("store", "published", export.file.size_bytes)
        return Shard(digest=digest, size_bytes=export.file.size_bytes, tensors=export.file.names, chain=chain, delta_only=delta_only)

    async def _chain(self, export: Export, what: str) -> list[ShardDelta]:
        """Stores the delta and returns the chain that ends with it; empty without a base, or if the whole file is no larger."""
        base = self._base
        if base is None:
            return []
        so_far = list(base.shard.chain) if base.shard.delta_only else []
        if export.digest == base.export.digest:
            return so_far
        delta = await in_run_thread(lambda: _delta(base.export.file, export.file), "make delta")
        if not delta:
            self._tell(what)
            return []
        stored = await until_stored(lambda: self._objects.put_blob(delta), what)
        weights_moved("delta", "published", len(delta))
        return [*so_far, ShardDelta(base_step=base.export.step, base_digest=base.shard.digest, digest=stored, size_bytes=len(delta))]

    def _tell(self, what: str) -> None:
        if not self._told:
            _log.info("whole_file_chosen", what=what, reason=f"its delta would exceed {_MAX_DELTA_SHARE:.0%} of it; said once")
        self._told = True


def transport_for(spec: WeightsSpec, objects: ObjectStore, folder_deltas: bool) -> WeightsSpec:
    """Whole files in place of deltas if object storage is a folder, from which workers read them where they are; unless `folder_deltas`."""
    if spec.transport != "delta" or not objects.is_folder or folder_deltas:
        return spec
    reason = "workers read whole files in place, and deltas would only cost time; GRADBUS_FOLDER_DELTAS=true sends deltas all the same"
    _log.info("whole_files_chosen", store=objects.url, reason=reason)
    return spec.model_copy(update={"transport": "store"})


def _delta(old: TensorFile, new: TensorFile) -> bytes:
    """Empty if no delta saves anything."""
    try:
        delta = encode_file_delta(old.mapped(), new.mapped())
    except DeltaError as error:
        _log.warning("delta_not_made", error=str(error))
        return b""
    return delta if len(delta) < _MAX_DELTA_SHARE * new.size_bytes else b""
