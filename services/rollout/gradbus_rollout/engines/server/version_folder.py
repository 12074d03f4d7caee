"""A version as a server reads it: a folder in Hugging Face layout. Checked against the model and digested without torch."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.formats.frozen import frozen_names
from gradbus.formats.hf_model import CONFIG, PROCESSORS, sanitized_config, transformers_family
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.model_weights import read_name_plan
from gradbus.formats.safetensors import StoredTensor, mapped, read_headers
from gradbus.objects.cache_dir import written_below_cache
from gradbus_kernels.weights.digest_tree import WeightsDigest
from gradbus_rollout.engines.base import ExpectedLogprobs

_CONFIGS: Final = (CONFIG, "generation_config.json", *PROCESSORS)
_FREQUENCIES: Final = ".rotary_emb.inv_freq"
_PREFIX: Final = "version-"
_DIGEST_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version that a server has loaded, or is about to load."""

    version: int
    digest: str
    folder: Path
    probe: ExpectedLogprobs | None = None
    """The trainer's log-probabilities with this version."""

    @property
    def label(self) -> str:
        """Name of these weights on the server: step and head of the digest, so no two sets of weights share a label."""
        return f"{self.version}-{self.digest.removeprefix('sha256:')[:_DIGEST_SHOWN]}"


def model_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The base model's tensors by name, which each of its versions has, frozen ones too.

    A head tied to the embedding is not a tensor of its own, and the frequencies that older folders store are none.
    """
    if transformers_family(folder):
        plan = read_name_plan(folder)
        return {**plan.trained, **plan.frozen}
    found = read_headers(sorted(folder.glob("*.safetensors")))
    tensors = {name: tensor for name, tensor in found.items() if not name.endswith(_FREQUENCIES)}
    config = json.loads((folder / CONFIG).read_bytes())
    family = MODEL_FAMILIES.get(config.get("model_type"))
    fields = family.fields(config) if family else config
    if fields.get("tie_word_embeddings"):
        tensors.pop(family.head if family else "lm_head.weight", None)
    return tensors


def digest(tensors: Mapping[str, StoredTensor]) -> str:
    """`sha256:<hex>` over names, dtypes, shapes and bytes in order of name: the digest in manifests and attestations.

    Frozen tensors do not count: every version has the same.
    """
    total = WeightsDigest()
    trained = {name: tensors[name] for name in tensors.keys() - frozen_names(tensors)}
    contents = {file: memoryview(mapped(file)) for file in {tensor.file for tensor in trained.values()}}
    for name in sorted(trained):
        tensor = trained[name]
        total.begin(name, tensor.dtype, tensor.shape)
        total.add_content(contents[tensor.file][tensor.start : tensor.end])
    return total.text()


def make_version_folder(root: Path, model: Path, shards: Sequence[Path], copy: bool) -> Path:
    """Makes a new folder under `root` with the model's configuration and the shards. Linked shards outlive their deletion.

    Raises DiskError.
    """
    with new_version_folder(root) as folder:
        for name in _CONFIGS:
            if (model / name).exists():
                (folder / name).write_bytes(sanitized_config((model / name).read_bytes()))
        for number, shard in enumerate(shards, 1):
            place_shard(shard, folder / f"model-{number:05}-of-{len(shards):05}.safetensors", copy)
    return folder


@contextlib.contextmanager
def new_version_folder(root: Path) -> Iterator[Path]:
    """An empty folder under `root` with a name never used before, removed if the block fails. Raises DiskError."""
    folder = root / f"{_PREFIX}{secrets.token_hex(8)}"
    with written_below_cache("a version's weights"):
        folder.mkdir(parents=True)
        try:
            yield folder
        except BaseException:
            drop_version_folder(folder)
            raise


def place_shard(shard: Path, target: Path, copy: bool) -> None:
    """Links the shard to `target`, or copies it."""
    if copy:
        shutil.copyfile(shard, target)
        return
    try:
        os.link(shard, target)
    except OSError:  # another file system, or one without hard links
        target.symlink_to(shard.absolute())


def drop_version_folders(root: Path) -> None:
    """Removes every version folder under `root`, as a killed worker leaves them."""
    for folder in root.glob(f"{_PREFIX}*"):
        drop_version_folder(folder)


def drop_version_folder(folder: Path) -> None:
    """Removes the folder, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
