"""From what a spec says of its model to files in object storage, checked."""

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
from gradbus_gateway.intake.lru_cache import Recent
from gradbus_gateway.intake.server_paths import advice, under_roots
from gradbus_gateway.intake.uploads import store_path
from gradbus_gateway.settings import GatewaySettings

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES: Final = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class TakenModel:
    """A model in object storage."""

    spec: ModelSpec
    info: ModelInfo
    has_chat_template: bool


CheckedModels = Recent[frozenset[tuple[str, str]], TakenModel]
"""By file names and digests."""


class ModelIntake:
    """Takes models in."""

    def __init__(self, objects: ObjectStore, settings: GatewaySettings, checked: CheckedModels) -> None:
        self._objects = objects
        self._settings = settings
        self._checked = checked

    async def take(self, model: ModelSpec) -> tuple[TakenModel | None, list[Fault]]:
        """The model, or why it cannot be had."""
        try:
            files = model.files if model.files is not None else await self._stored_folder(model)
            return await self._taken(model, files), []
        except _ModelFault as error:
            return None, [error.fault]
        except ModelError as error:
            return None, [Fault("model", str(error), model.path)]
        except OSError as error:
            return None, [Fault("model.path", f"cannot be read: {error.strerror or error}", model.path)]

    async def _stored_folder(self, model: ModelSpec) -> dict[str, str]:
        folder = await asyncio.to_thread(under_roots, model.path, self._settings.model_roots)
        if folder is None and _HUB_ID.fullmatch(model.path) and model.revision:
            folder = await asyncio.to_thread(_downloaded, model.path, model.revision, self._settings.cache_dir / "hub")
        if folder is None:
            hint = "; a hub id needs `model.revision`" if _HUB_ID.fullmatch(model.path) else ""
            raise _ModelFault(
                Fault("model.path", "not a folder the server may read" + hint, model.path, advice(self._settings.model_roots))
            )
        if not await asyncio.to_thread(folder.is_dir):
            raise _ModelFault(Fault("model.path", "not a folder", model.path, "a folder in Hugging Face layout"))
        info = await asyncio.to_thread(check_model_folder, folder)
        return {name: (await store_path(self._objects, folder / name)).id for name in info.files}

    async def _taken(self, model: ModelSpec, files: dict[str, str]) -> TakenModel:
        """Checked now, or when these files came before, if all of them are still stored."""
        key = frozenset(files.items())
        known = self._checked.get(key)
        if known is None or not await self._objects.has_blobs((known.spec.files or {}).values()):
            known = await self._look(model, files)
            self._checked.put(key, known)
        return replace(known, spec=model.model_copy(update={"files": known.spec.files}))

    async def _look(self, model: ModelSpec, files: dict[str, str]) -> TakenModel:
        """Lays the small files and empty stand-ins for the weights side by side, for the check reads names and JSON only."""
        names = [checked_file_name(file) for file in files]
        kept: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="gradbus-model-") as name:
            folder = Path(name)
            for file in names:
                kept[file] = await self._laid_out(folder / file, files[file])
            try:
                info = await asyncio.to_thread(check_model_folder, folder)
            except ModelError as error:
                raise ModelError(str(error).replace(name, "the model")) from None
            chat = await asyncio.to_thread(_has_chat_template, folder)
        wanted = {file: kept[file] for file in info.files}
        return TakenModel(model.model_copy(update={"files": wanted}), info, chat)

    async def _laid_out(self, target: Path, digest: str) -> str:
        """Writes the file's check copy; the digest to keep, which differs when code was stripped from a configuration."""
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


class _ModelFault(Exception):  # noqa: N818 - carries a fault to `take`
    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def _missing(name: str, digest: str) -> _ModelFault:
    return _ModelFault(Fault(f"model.files.{name}", "the file is not stored", digest, "the id that POST /v1/files answered with"))


def _downloaded(hub_id: str, revision: str, cache: Path) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only runs on hub models pay for it

    try:
        return Path(snapshot_download(hub_id, revision=revision, cache_dir=cache, allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise _ModelFault(
            Fault("model.path", f"the hub does not give it: {reason}", f"{hub_id} at {revision}", "a hub id with a revision, or a folder")
        ) from None


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        config = json.loads((folder / _TOKENIZER_CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))
