"""`python -m gradbus_gateway.intake.model.hub_download`: downloads one model.

Reads the order as a line of JSON and ends with status 0, or with status 1 and the reason on its output. It also ends when its input
does: the gateway is gone.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from gradbus.aio.order_input import read_order
from gradbus.errors import ModelError, first_line
from gradbus.formats.hf_model import INDEX, STORED_NAMES, checked_file_name, most_bytes, read_family, weight_map
from gradbus.formats.reward_model import read_reward_family

_WHOLE: Final = "model.safetensors"
_MAX_FILES: Final = 1100
_LISTING_SECONDS: Final = 30.0
_ROOM_FACTOR: Final = 2
"""Room for the download and for its copy in object storage, which may lie on the same disk."""


def main() -> int:
    """Downloads what the order on the input says."""
    order = json.loads(read_order())
    try:
        download(order["hub_id"], order["revision"], Path(order["folder"]), order["max_bytes"], order["kind"])
    except Exception as error:  # noqa: BLE001 -- the boundary of the process: the reason goes to the gateway
        sys.stdout.write(_reason(error, order["folder"]))
        return 1
    return 0


def download(hub_id: str, revision: str, folder: Path, most: int, kind: str = "policy") -> None:
    """Downloads the configurations, the tokenizer and the weights of a commit into `folder`; `kind` "reward": of a reward model.

    Asks for the sizes first. Raises ModelError for a model that is too large or no model, and what the hub's library raises.
    """
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415 - after the arguments are known

    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    info = HfApi().model_info(hub_id, revision=revision, files_metadata=True, timeout=_LISTING_SECONDS)
    if info.sha != revision:
        raise ModelError(f"revision {revision} is not a commit of it; give the 40 hex digits of a commit")
    sizes = {file.rfilename: file.size for file in info.siblings or () if "/" not in file.rfilename}

    def fetch(names: Collection[str]) -> None:
        _check_sizes({name: sizes.get(name) for name in names}, folder, most)
        snapshot_download(hub_id, revision=revision, local_dir=folder, allow_patterns=sorted(names))
        for name in names:
            _check_place(folder / name, folder)

    fetch(sizes.keys() & STORED_NAMES)
    # Before gigabytes of a model that cannot be used.
    if kind == "reward":
        read_reward_family(folder)
    else:
        read_family(folder)
    fetch([_WHOLE] if _WHOLE in sizes or INDEX not in sizes else sorted(set(weight_map(folder).values())))


def _check_sizes(sizes: Mapping[str, int | None], folder: Path, most: int) -> None:
    if len(sizes) > _MAX_FILES:
        raise ModelError(f"it has {len(sizes)} files, at most {_MAX_FILES} are taken; choose another model")
    total = 0
    for name, size in sizes.items():
        checked_file_name(name)
        if size is None:
            raise ModelError(f"it has no {name} of a known size; choose another model")
        limit = most_bytes(name)
        if limit is not None and size > limit:
            raise ModelError(f"{name} has {size} bytes, at most {limit} are taken; choose another model")
        total += size
    if total > most:
        raise ModelError(f"it has {total} bytes, at most {most} are taken; the operator may raise GRADBUS_MAX_MODEL_BYTES")
    if total * _ROOM_FACTOR > shutil.disk_usage(folder).free:
        raise ModelError(f"the server's disk has no room for {total} bytes; ask its operator, or choose a smaller model")


def _check_place(file: Path, folder: Path) -> None:
    if file.is_symlink() or not file.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{file.name} leads out of the download; choose another model")


def _reason(error: Exception, folder: str) -> str:
    """The error in one line, without the token and the server's paths."""
    text = first_line(error)
    for secret, shown in ((os.environ.get("HF_TOKEN", ""), "(token)"), (folder, "the download")):
        text = text.replace(secret, shown) if secret else text
    return text


if __name__ == "__main__":
    sys.exit(main())
