"""The files of a policy version as a model folder: those of the run's base model, with the version's weights in place of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gradbus.objects import ObjectStore
from gradbus.v1.weights_pb2 import WeightManifest

_WEIGHTS: Final = (".safetensors", ".safetensors.index.json")


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A stored file of a model folder."""

    name: str
    digest: str
    size_bytes: int | None = None
    """None if nobody has asked for it."""


def base_files(files: Mapping[str, str]) -> list[VersionFile]:
    """`files` (name to digest) of a stored model, in order of their names."""
    return [VersionFile(name, digest) for name, digest in sorted(files.items())]


async def version_files(objects: ObjectStore, files: Mapping[str, str], manifest: WeightManifest) -> list[VersionFile]:
    """The folder of a version that holds every weight and is stored whole. `files` are those of the run's base model.

    No file is copied. Of a version in several files the index is stored, which is made here.
    """
    return [file for file in base_files(files) if not file.name.endswith(_WEIGHTS)] + await _weight_files(objects, manifest)


async def _weight_files(objects: ObjectStore, manifest: WeightManifest) -> list[VersionFile]:
    shards = manifest.shards
    if len(shards) == 1:
        return [VersionFile("model.safetensors", shards[0].digest, shards[0].size_bytes)]
    names = [f"model-{at:05d}-of-{len(shards):05d}.safetensors" for at in range(1, len(shards) + 1)]
    files = [VersionFile(name, shard.digest, shard.size_bytes) for name, shard in zip(names, shards, strict=True)]
    index = {
        "metadata": {"total_size": sum(shard.size_bytes for shard in shards)},
        "weight_map": {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard.tensors},
    }
    content = json.dumps(index, indent=2).encode()
    return [*files, VersionFile("model.safetensors.index.json", await objects.put_blob(content), len(content))]
