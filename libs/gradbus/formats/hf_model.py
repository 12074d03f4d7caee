"""The check of a model folder before anything is loaded from it. Reads JSON and file names only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.model_families import MODEL_FAMILIES, ModelFamily, family_of_architecture

_TOKENIZER_FILES: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a model that its folder states."""

    family: ModelFamily
    context_length: int
    """Tokens of prompt and response together (`max_position_embeddings`)."""
    vocab_size: int
    files: tuple[str, ...]
    """Names of the files to store, sorted; other files of the folder are ignored."""


def check_model_folder(path: Path) -> ModelInfo:
    """Reads the folder's ModelInfo. Raises ModelError if it is not a Hugging Face folder that can be trained."""
    config = read_object(path / "config.json")
    return ModelInfo(
        family=_family(config),
        context_length=positive(config, "max_position_embeddings"),
        vocab_size=positive(config, "vocab_size"),
        files=_files(path),
    )


def checked_file_name(name: str) -> str:
    """`name`, if it is a plain file name. Raises ModelError for a name that could lead out of a folder."""
    if not _SAFE_NAME.fullmatch(name) or ".." in name:
        raise ModelError(f"{name!r} is not a plain file name; use letters, digits, '.', '_' and '-' only, without folders")
    return name


def sanitized_config(config: bytes) -> bytes:
    """A JSON configuration without `auto_map`, which names code to run. Raises ModelError if it is not a JSON object."""
    value = _parse_object(config, "the configuration")
    return json.dumps(_without_auto_map(value), indent=2, ensure_ascii=False).encode()


def positive(config: Mapping[str, object], field: str) -> int:
    """A required size in config.json. Raises ModelError unless it is a whole number above 0."""
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json has {field} = {value!r}; it must be a whole number above 0")
    return value


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file of a model folder. Raises ModelError if the file is missing or holds none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path} ({error.strerror}); give a folder in Hugging Face layout") from error
    return _parse_object(data, str(path))


def _without_auto_map(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_auto_map(item) for key, item in value.items() if key != "auto_map"}
    return [_without_auto_map(item) for item in value] if isinstance(value, list) else value


def _family(config: Mapping[str, object]) -> ModelFamily:
    named = config.get("architectures")
    family = family_of_architecture(named[0]) if isinstance(named, list) and len(named) == 1 else None
    if family is None:
        allowed = ", ".join(family.architecture for family in MODEL_FAMILIES.values())
        raise ModelError(f"config.json names the architectures {named!r}; choose a model of one of: {allowed}")
    if config.get("model_type") != family.model_type:
        raise ModelError(
            f"config.json says model_type {config.get('model_type')!r} with architecture {family.architecture}; "
            f"set model_type to {family.model_type!r}, or take the folder that belongs together"
        )
    return family


def _files(path: Path) -> tuple[str, ...]:
    present = {entry.name for entry in path.iterdir() if entry.is_file()}
    if "tokenizer.json" not in present:
        raise ModelError(f"{path} has no tokenizer.json; save the tokenizer into the folder with `tokenizer.save_pretrained` (a fast one)")
    shards = {name for name in present if name.endswith(".safetensors")}
    if not shards:
        pickled = sorted(name for name in present if name.endswith((".bin", ".pt", ".pth")))
        found = f"only pickled weights ({', '.join(pickled)}), which are never loaded" if pickled else "no weights"
        raise ModelError(f"{path} has {found}; save the model with `save_pretrained` as *.safetensors")
    for name in shards:
        checked_file_name(name)
    wanted = {"config.json", "tokenizer.json", "model.safetensors.index.json", *_TOKENIZER_FILES}
    return tuple(sorted(shards | (present & wanted)))


def _parse_object(data: bytes, what: str) -> dict[str, object]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} is not JSON ({error}); download or save it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{what} is not a JSON object; download or save it again")
    return value
