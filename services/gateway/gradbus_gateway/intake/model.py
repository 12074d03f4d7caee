"""Checks the model that a spec names, and stores its files."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gradbus.errors import Fault, ModelError, ObjectMissingError
from gradbus.formats.hf_model import ModelInfo, check_model_folder, checked_file_name, sanitized_config
from gradbus.objects import ObjectStore
from gradbus.spec import ModelSpec
from gradbus_gateway.intake.lru_cache import LruCache
from gradbus_gateway.intake.server_paths import allowed_paths, under_roots
from gradbus_gateway.intake.uploads import store_path
from gradbus_gateway.settings import GatewaySettings

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES: Final = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model, in object storage."""

    spec: ModelSpec
    """With the digest of every file."""
    info: ModelInfo
    has_chat_template: bool


class ModelIntake:
    """Checks and stores models. A model that was checked before is not checked again while it is stored."""

    def __init__(self, objects: ObjectStore, settings: GatewaySettings) -> None:
        self._objects = objects
        self._settings = settings
        self._checked = LruCache[frozenset[tuple[str, str]], StoredModel]()
        """By file names and digests."""

    async def store(self, model: ModelSpec) -> tuple[StoredModel | None, list[Fault]]:
        """The stored model, or None and the first fault."""
        try:
            files = model.files if model.files is not None else await self._store_folder(model)
            return await self._checked_model(model, files), []
        except _ModelFault as error:
            return None, [error.fault]
        except ModelError as error:
            return None, [Fault("model", str(error), model.path)]
        except OSError as error:
            return None, [Fault("model.path", f"cannot be read: {error.strerror or error}", model.path)]

    async def _store_folder(self, model: ModelSpec) -> dict[str, str]:
        folder = await asyncio.to_thread(under_roots, model.path, self._settings.model_roots)
        if folder is None and _HUB_ID.fullmatch(model.path) and model.revision:
            folder = await asyncio.to_thread(_downloaded, model.path, model.revision, self._settings.cache_dir / "hub")
        if folder is None:
            hint = "; a hub id needs `model.revision`" if _HUB_ID.fullmatch(model.path) else ""
            raise _ModelFault(
                Fault("model.path", "not a folder the server may read" + hint, model.path, allowed_paths(self._settings.model_roots))
            )
        if not await asyncio.to_thread(folder.is_dir):
            raise _ModelFault(Fault("model.path", "not a folder", model.path, "a folder in Hugging Face layout"))
        info = await asyncio.to_thread(check_model_folder, folder)
        return {name: (await store_path(self._objects, folder / name)).id for name in info.files}

    async def _checked_model(self, model: ModelSpec, files: dict[str, str]) -> StoredModel:
        """The result of an earlier check of these files if all of them are still stored, else of a new check."""
        key = frozenset(files.items())
        checked = self._checked.get(key)
        if checked is None or not await self._objects.has_blobs((checked.spec.files or {}).values()):
            checked = await self._check(model, files)
            self._checked.put(key, checked)
        return replace(checked, spec=model.model_copy(update={"files": checked.spec.files}))

    async def _check(self, model: ModelSpec, files: dict[str, str]) -> StoredModel:
        """Checks a temporary folder of the small files and of empty files for the weights: the check reads names and JSON only."""
        names = [checked_file_name(file) for file in files]
        digests: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="gradbus-model-") as name:
            folder = Path(name)
            for file in names:
                digests[file] = await self._write_for_check(folder / file, files[file])
            try:
                info = await asyncio.to_thread(check_model_folder, folder)
            except ModelError as error:
                raise ModelError(str(error).replace(name, "the model")) from None
            chat = await asyncio.to_thread(_has_chat_template, folder)
        used = {file: digests[file] for file in info.files}
        return StoredModel(model.model_copy(update={"files": used}), info, chat)

    async def _write_for_check(self, target: Path, digest: str) -> str:
        """Writes `target` for the check. Returns the digest to store, which differs if code was removed from a configuration."""
        if target.suffix == ".safetensors":
            if not await self._objects.has_blob(digest):
                raise _missing(target.name, digest)
            await asyncio.to_thread(target.touch)
            return digest
        try:
            content = await self._objects.get_blob(digest)
        except ObjectMissingError:
            raise _missing(target.name, digest) from None
        if target.name in {"config.json", _TOKENIZER_CONFIG} and b"auto_map" in content:
            content = sanitized_config(content)
            digest = await self._objects.put_blob(content)
        await asyncio.to_thread(target.write_bytes, content)
        return digest


class _ModelFault(Exception):  # noqa: N818 - carries a fault to `store`
    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def _missing(name: str, digest: str) -> _ModelFault:
    return _ModelFault(Fault(f"model.files.{name}", "the file is not stored", digest, "the id that POST /v1/files returned"))


def _downloaded(hub_id: str, revision: str, cache: Path) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only runs on hub models pay for it

    try:
        return Path(snapshot_download(hub_id, revision=revision, cache_dir=cache, allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise _ModelFault(
            Fault("model.path", f"the hub refused it: {reason}", f"{hub_id} at {revision}", "a hub id with a revision, or a folder")
        ) from None


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        config = json.loads((folder / _TOKENIZER_CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))
