"""A version's shards as the folder in Hugging Face layout that the server reads."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gradbus.formats.hf_model import sanitized_config
from gradbus.formats.safetensors import StoredTensor, read_headers
from gradbus.objects.cache_dir import written_below

_CONFIGS: Final = ("config.json", "generation_config.json")
_VERSION: Final = "version-"


def model_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of the base model, which every version of it has. A head that is tied to the embedding is no tensor of its own."""
    tensors = read_headers(sorted(folder.glob("*.safetensors")))
    if json.loads((folder / "config.json").read_bytes()).get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    return tensors


def make_version_folder(root: Path, model: Path, shards: Sequence[Path], copy: bool) -> Path:
    """A fresh folder under `root`: the model's configuration and the shards, linked or copied. Linked shards outlive their deletion.

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
    """An empty one under `root`, that no version has had; a block that fails leaves nothing of it. Raises DiskError."""
    folder = root / f"{_VERSION}{secrets.token_hex(8)}"
    with written_below(root, "a version's weights"):
        folder.mkdir(parents=True)
        try:
            yield folder
        except BaseException:
            drop_version_folder(folder)
            raise


def drop_version_folders(root: Path) -> None:
    """Removes those that a killed worker left under `root`."""
    for folder in root.glob(f"{_VERSION}*"):
        drop_version_folder(folder)


def place_shard(shard: Path, target: Path, copy: bool) -> None:
    """Links it, or copies it."""
    if copy:
        shutil.copyfile(shard, target)
        return
    try:
        os.link(shard, target)
    except OSError:  # another file system, or one without hard links
        target.symlink_to(shard.absolute())


def drop_version_folder(folder: Path) -> None:
    """Removes it; a folder that is gone already is fine."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
