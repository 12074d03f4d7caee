"""Checks the model that a spec names, and stores its files."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from gradbus.errors import Fault, ModelError, SpecError
from gradbus.formats.hf_model import STORED_NAMES, ModelInfo, check_model_folder
from gradbus.formats.model_config import ModelConfig, read_model_config
from gradbus.formats.model_families import ModelFamily
from gradbus.formats.model_weights import NamePlan, check_tied_head, check_vocabulary, read_name_plan
from gradbus.formats.reward_model import check_reward_folder, read_reward_config
from gradbus.lru_cache import LruCache
from gradbus.objects import ObjectStore
from gradbus.spec import ModelSpec
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.model.hub import Hub, is_hub_id
from gradbus_gateway.intake.model.outline import TOKENIZER_CONFIG, write_outline
from gradbus_gateway.intake.model.scoring_head import is_reward_model, with_scoring_head
from gradbus_gateway.intake.model.tied_head import check_stored_head
from gradbus_gateway.intake.server_paths import allowed_paths, link_fault, under_roots
from gradbus_gateway.intake.uploads import store_path
from gradbus_gateway.settings import GatewaySettings

_MAX_CHECKS: Final = 2
"""Models checked at a time: a check reads up to 16 MiB of headers, and as much of other files, into memory."""
_MAX_FOLDERS: Final = 2
"""Folders of the server that are read at a time, each as long as a download may take."""
FolderKind = Literal["policy", "reward"]
"""What a folder has to be: a model to train, or a reward model."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model, in object storage."""

    spec: ModelSpec
    """With the digest of every file."""
    info: ModelInfo
    config: ModelConfig | None
    """None for a family that transformers computes."""
    has_chat_template: bool


class ModelIntake:
    """Checks and stores models. A model that was checked before is not checked again while it is stored."""

    def __init__(self, objects: ObjectStore, settings: GatewaySettings) -> None:
        self._objects = objects
        self._settings = settings
        self._hub = Hub(settings)
        self._checks = CheckTurns(_MAX_CHECKS)
        self._folders = CheckTurns(_MAX_FOLDERS, settings.max_hub_seconds)
        self._checked = LruCache[tuple[FolderKind, frozenset[tuple[str, str]]], StoredModel]()
        """By file names and digests."""
        self._downloaded = LruCache[tuple[str, str], dict[str, str]]()
        """The files of a hub id and revision."""

    async def store(self, model: ModelSpec, caller: str, kind: FolderKind = "policy") -> tuple[StoredModel | None, list[Fault]]:
        """The stored model, or None and its faults. Raises the problem 503 if this gateway is too busy to tell."""
        try:
            files = model.files if model.files is not None else await self._store_folder(model.path or "", model.revision, caller, kind)
            return await self._checked_model(model, files, caller, kind), []
        except SpecError as error:
            return None, list(error.faults)
        except ModelError as error:
            return None, [Fault("model", str(error), model.source)]
        except OSError as error:
            return None, [Fault("model.path", f"cannot be read: {error.strerror or 'the server failed'}", model.source)]

    async def store_reward_model(self, model: ModelSpec, caller: str) -> tuple[StoredModel | None, list[Fault]]:
        """The stored reward model; see `store`."""
        return await self.store(model, caller, "reward")

    async def store_with_head(self, model: ModelSpec, caller: str) -> tuple[StoredModel | None, list[Fault]]:
        """The stored reward model that begins with a language model, or is one already; see `store`."""
        if model.files is not None and await is_reward_model(self._objects, model.files):
            return await self.store_reward_model(model, caller)
        language_model, faults = await self.store(model, caller)
        if language_model is None:
            return None, faults
        try:
            files = await with_scoring_head(self._objects, language_model.spec.files or {})
        except ModelError as error:
            return None, [Fault("model", str(error), model.source)]
        return await self.store_reward_model(model.model_copy(update={"files": files}), caller)

    async def _store_folder(self, path: str, revision: str | None, caller: str, kind: FolderKind) -> dict[str, str]:
        folder = await asyncio.to_thread(under_roots, path, self._settings.model_roots)
        if folder is None and is_hub_id(path) and revision:
            return await self._store_download(path, revision, caller, kind)
        if folder is None:
            hint = "; a hub id needs `model.revision`" if is_hub_id(path) else ""
            message = "not a folder the server may read" + hint
            raise SpecError([Fault("model.path", message, path, allowed_paths(self._settings.model_roots))])
        if not await asyncio.to_thread(folder.is_dir):
            raise SpecError([Fault("model.path", "not a folder", path, "a folder in Hugging Face layout")])
        async with self._folders.turn(caller):
            await asyncio.to_thread(_refuse_links_out, folder, self._settings.model_roots)
            return await self._store_files(folder, kind)

    async def _store_download(self, hub_id: str, revision: str, caller: str, kind: FolderKind) -> dict[str, str]:
        """Downloads once, whoever asks for the model meanwhile."""
        if files := await self._earlier_download(hub_id, revision):
            return files
        async with self._hub.turn(hub_id, revision, caller):
            files = await self._earlier_download(hub_id, revision)
            if files is None:
                async with self._hub.downloaded(hub_id, revision, kind) as folder:
                    files = await self._store_files(folder, kind)
                self._downloaded.put((hub_id, revision), files)
            return files

    async def _earlier_download(self, hub_id: str, revision: str) -> dict[str, str] | None:
        files = self._downloaded.get((hub_id, revision))
        return files if files and await self._objects.has_blobs(files.values()) else None

    async def _store_files(self, folder: Path, kind: FolderKind) -> dict[str, str]:
        info, _, plan = await asyncio.to_thread(_inspect, folder, self._settings.max_model_bytes, kind)
        if plan is not None:
            await asyncio.to_thread(check_tied_head, plan)
        return {name: (await store_path(self._objects, folder / name)).id for name in info.files}

    async def _checked_model(self, model: ModelSpec, files: dict[str, str], caller: str, kind: FolderKind) -> StoredModel:
        """The result of an earlier check of these files if all of them are still stored, else of a new check."""
        checked = await self._earlier_check(files, kind)
        if checked is None:
            async with self._checks.turn(caller):
                checked = await self._earlier_check(files, kind) or await self._check(model, files, kind)
                self._checked.put((kind, frozenset(files.items())), checked)
        return replace(checked, spec=model.model_copy(update={"files": checked.spec.files}))

    async def _earlier_check(self, files: dict[str, str], kind: FolderKind) -> StoredModel | None:
        checked = self._checked.get((kind, frozenset(files.items())))
        return checked if checked and await self._objects.has_blobs((checked.spec.files or {}).values()) else None

    async def _check(self, model: ModelSpec, files: dict[str, str], kind: FolderKind) -> StoredModel:
        with tempfile.TemporaryDirectory(prefix="gradbus-model-") as name:
            digests = await write_outline(self._objects, files, Path(name))
            info, config, plan = await asyncio.to_thread(_inspect, Path(name), self._settings.max_model_bytes, kind)
            if plan is not None and plan.tied_head is not None:
                await check_stored_head(self._objects, digests, plan.tied_head)
            chat = await asyncio.to_thread(_has_chat_template, Path(name))
        used = {file: digests[file] for file in info.files}
        return StoredModel(model.model_copy(update={"files": used}), info, config, chat)


def _refuse_links_out(folder: Path, roots: Sequence[Path]) -> None:
    """Raises ModelError for a file of the folder that is a link out of the roots: its content would be stored, and exported."""
    for entry in folder.iterdir():
        used = entry.name in STORED_NAMES or entry.name.endswith(".safetensors")
        if used and entry.is_symlink() and under_roots(str(entry), roots) is None:
            raise ModelError(link_fault(entry))


def _inspect(folder: Path, most: int, kind: FolderKind) -> tuple[ModelInfo, ModelConfig | None, NamePlan | None]:
    """What the folder states. The plan is of a policy alone: a reward model has no head for tokens."""
    info, config, plan = _inspected_policy(folder) if kind == "policy" else (check_reward_folder(folder), read_reward_config(folder), None)
    size = sum((folder / name).stat().st_size for name in info.files)
    if size > most:
        raise ModelError(f"the model has {size} bytes, at most {most} are taken; the operator may raise GRADBUS_MAX_MODEL_BYTES")
    return info, config, plan


def _inspected_policy(folder: Path) -> tuple[ModelInfo, ModelConfig | None, NamePlan]:
    info = check_model_folder(folder)
    config = read_model_config(folder) if isinstance(info.family, ModelFamily) else None
    plan = read_name_plan(folder)
    check_vocabulary(plan, info.vocab_size)
    return info, config, plan


def _has_chat_template(folder: Path) -> bool:
    """Does not parse the tokenizer's configuration, which may take a second: the check of the prompts does, in another process."""
    config = folder / TOKENIZER_CONFIG
    return (folder / "chat_template.jinja").is_file() or (config.is_file() and b'"chat_template"' in config.read_bytes())
