"""What the bucket `heads` holds: `<run>.version` and `<run>.checkpoint`, written by the weight store alone."""

from __future__ import annotations

import base64

from pydantic import BaseModel, ConfigDict

from gradbus.v1.weights_pb2 import Shard, ShardDelta, VersionProbe, WeightManifest


class _Head(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    term: int
    """The trainer's term under which the head moved here: it orders heads before `step` does, for a replay goes back."""
    step: int
    digest: str

    def to_bytes(self) -> bytes:
        """As stored."""
        return self.model_dump_json().encode()


class DeltaName(BaseModel):
    """A link of a shard's chain."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    base_step: int
    base_digest: str
    digest: str
    size_bytes: int

    @classmethod
    def of(cls, delta: ShardDelta) -> DeltaName:
        """The name of `delta`."""
        return cls(base_step=delta.base_step, base_digest=delta.base_digest, digest=delta.digest, size_bytes=delta.size_bytes)


class ShardName(BaseModel):
    """A shard as a loader needs it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    digest: str
    size_bytes: int
    chain: tuple[DeltaName, ...] = ()
    delta_only: bool = False

    @classmethod
    def of(cls, shard: Shard) -> ShardName:
        """The name of `shard`."""
        chain = tuple(map(DeltaName.of, shard.chain))
        return cls(digest=shard.digest, size_bytes=shard.size_bytes, chain=chain, delta_only=shard.delta_only)

    def shard(self) -> Shard:
        """The shard, without the names of its tensors."""
        chain = [ShardDelta(**link.model_dump()) for link in self.chain]
        return Shard(digest=self.digest, size_bytes=self.size_bytes, chain=chain, delta_only=self.delta_only)


class VersionHead(_Head):
    """`<run>.version`: the newest version, with all that a worker needs to load it. `digest` is over the tensors."""

    shards: tuple[ShardName, ...]
    noop: bool = False
    probe: str = ""
    """The manifest's, as base64; empty without one."""
    traceparent: str = ""
    """Of the publication that moved the head here."""

    @classmethod
    def of(cls, manifest: WeightManifest) -> VersionHead:
        """The head that names `manifest`; its term and its trace are those of the publication, which may be a replay."""
        shards = tuple(map(ShardName.of, manifest.shards))
        probe = base64.b64encode(manifest.probe.SerializeToString()).decode()
        return cls(
            term=manifest.term,
            step=manifest.step,
            digest=manifest.digest,
            shards=shards,
            noop=manifest.noop,
            probe=probe,
            traceparent=manifest.traceparent,
        )

    def manifest(self, run_id: str) -> WeightManifest:
        """The version's manifest, without the names of its tensors."""
        shards = [name.shard() for name in self.shards]
        probe = VersionProbe.FromString(base64.b64decode(self.probe)) if self.probe else None
        return WeightManifest(
            run_id=run_id,
            term=self.term,
            step=self.step,
            digest=self.digest,
            shards=shards,
            noop=self.noop,
            probe=probe,
            traceparent=self.traceparent,
        )


class CheckpointHead(_Head):
    """`<run>.checkpoint`: the newest durable checkpoint. `digest` names its manifest's blob."""
