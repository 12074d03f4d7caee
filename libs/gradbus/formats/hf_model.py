"""The check of a model folder before anything is loaded from it. Reads config.json, the index, and names and sizes of files only."""

from __future__ import annotations

import codecs
import json
import os
import re
import reprlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.config_fields import LONGROPE, MAX_CONTEXT, check_counts
from gradbus.formats.model_families import MODEL_FAMILIES, ModelFamily, family_of_architecture
from gradbus.formats.safetensors import MAX_TENSORS
from gradbus.formats.transformers_families import TransformersFamily, transformers_family_of
from gradbus.strict_json import parse_json

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
Family = ModelFamily | TransformersFamily
_WHOLE: Final = "model.safetensors"
_TOKENIZER: Final = "tokenizer.json"
PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""How a model with images prepares them, without which SGLang does not start on one, though it is given text alone."""
STORED_NAMES: Final = frozenset(
    {
        *PROCESSORS,
        CONFIG,
        INDEX,
        _TOKENIZER,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "generation_config.json",
    }
)
"""Files of a folder that are stored beside its weights."""
_SMALL_FILES: Final = frozenset({*PROCESSORS, CONFIG, "generation_config.json", "chat_template.jinja"})
_VOCABULARIES: Final = frozenset({_TOKENIZER, "vocab.json", "merges.txt"})
_SMALL_BYTES, _FILE_BYTES, _VOCABULARY_BYTES = 1 << 20, 16 << 20, 64 << 20
_MAX_VALUES: Final = 500_000
"""Values in one JSON file of a folder; some tokenizers' configurations list 65,000 tokens."""
_SMALL_INDEX: Final = 100
"""Values of an index beside its tensors."""
_MAX_WEIGHT_FILES: Final = 1024
_MAX_SIZE: Final[Mapping[str, int]] = {"vocab_size": 1 << 22, "max_position_embeddings": MAX_CONTEXT}
_CONTEXT_FIELDS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""What families call the length of the context; models without positions state none of them."""
_UNLIMITED: Final = 1 << 17
"""The context of a model that states no length."""
_LONGER: Final = reprlib.Repr()
_LONGER.maxstring = 80  # the names of architectures, whole
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a model that its folder states."""

    family: Family
    context_length: int
    """Tokens of prompt and response together; see `context_length`."""
    vocab_size: int
    files: tuple[str, ...]
    """Names of the files to store, sorted; other files of the folder are ignored."""


def check_model_folder(path: Path) -> ModelInfo:
    """Reads the folder's ModelInfo. Raises ModelError if it is not a Hugging Face folder that can be trained."""
    config = read_object(path / CONFIG)
    family = _family(config)
    text = family.text_config(config) if isinstance(family, TransformersFamily) else family.fields(config)
    if isinstance(family, TransformersFamily):
        check_counts(text)
    return ModelInfo(
        family=family,
        context_length=context_length(text) if isinstance(family, ModelFamily) else stated_context(text),
        vocab_size=positive(text, "vocab_size"),
        files=stored_files(path),
    )


def read_family(path: Path) -> Family:
    """The family of the model, by its config.json alone. Raises ModelError for a family that cannot be trained."""
    return _family(read_object(path / CONFIG))


def transformers_family(path: Path) -> TransformersFamily | None:
    """The family if transformers computes it; None for all others, which `read_model_config` takes or refuses. Raises ModelError."""
    config = read_object(path / CONFIG)
    if transformers_family_of(_architecture(config)) is None:
        return None
    family = _family(config)
    return family if isinstance(family, TransformersFamily) else None


def stored_files(path: Path) -> tuple[str, ...]:
    """Names of the folder's files to store, sorted. Raises ModelError for a folder without a tokenizer or weights."""
    present = {entry.name for entry in path.iterdir() if entry.is_file()}
    if _TOKENIZER not in present:
        raise ModelError("the model has no tokenizer.json; save a fast tokenizer into its folder with `tokenizer.save_pretrained`")
    if not any(name.endswith(".safetensors") for name in present):
        pickled = sorted(name for name in present if name.endswith((".bin", ".pt", ".pth")))
        found = f"only pickled weights ({', '.join(pickled[:3])}), which are never loaded" if pickled else "no weights"
        raise ModelError(f"the model has {found}; save it with `save_pretrained` as *.safetensors")
    weights = weight_files(path)
    wanted = (present & STORED_NAMES) - ({INDEX} if weights == (_WHOLE,) else set())
    for name in sorted(wanted):
        most = most_bytes(name)
        if most is not None and (path / name).stat().st_size > most:
            raise ModelError(f"{name} has more than {most} bytes; take the model's own file")
    return tuple(sorted(wanted.union(weights)))


def weight_files(path: Path) -> tuple[str, ...]:
    """Names of the folder's weights, sorted: the one file, or the shards that the index names; other safetensors are ignored.

    Raises ModelError.
    """
    if (path / _WHOLE).is_file():
        return (_WHOLE,)
    if not (path / INDEX).is_file():
        raise ModelError(f"the model has neither {_WHOLE} nor {INDEX}; save it with `save_pretrained`")
    names = sorted({checked_file_name(name) for name in weight_map(path).values()})
    if len(names) > _MAX_WEIGHT_FILES:
        raise ModelError(f"{INDEX} names {len(names)} files, at most {_MAX_WEIGHT_FILES} are taken; save the model in larger shards")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise ModelError(f"{INDEX} names {', '.join(missing[:3])}, which the model does not have; copy the whole model")
    return tuple(names)


def weight_map(path: Path) -> Mapping[str, str]:
    """Name of each tensor to its file, as the folder's index says. Raises ModelError."""
    found = read_object(path / INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise ModelError(f"{INDEX} has no weight_map of tensors to files; download or save it again")
    return found


def most_bytes(name: str) -> int | None:
    """The size limit of the file `name` of a model folder; None for weights."""
    if name.endswith(".safetensors"):
        return None
    if name in _VOCABULARIES:
        return _VOCABULARY_BYTES
    return _SMALL_BYTES if name in _SMALL_FILES else _FILE_BYTES


def checked_file_name(name: str) -> str:
    """`name`, if it is a plain file name. Raises ModelError for a name that could lead out of a folder."""
    if not _SAFE_NAME.fullmatch(name) or ".." in name:
        raise ModelError(f"{reprlib.repr(name)} is not a plain file name; use letters, digits, '.', '_' and '-' only, without folders")
    return name


def sanitized_config(config: bytes) -> bytes:
    """A JSON configuration without `auto_map`, which names code to run. Raises ModelError if it is not a JSON object."""
    value = _without_auto_map(_parse_object(config, "the configuration"))
    indented = json.dumps(value, indent=2, ensure_ascii=False).encode()
    if len(indented) <= _SMALL_BYTES:
        return indented
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()  # no larger than what was taken


def positive(config: Mapping[str, object], field: str, most: int | None = None, default: int | None = None) -> int:
    """A size in config.json, required unless it has a default. Raises ModelError unless it is a whole number from 1 to `most`."""
    given, limit = config.get(field), most or _MAX_SIZE[field]
    value = default if given is None else given
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise ModelError(f"config.json has {field} = {reprlib.repr(value)}; it must be a whole number above 0 and at most {limit}")
    return value


def context_length(fields: Mapping[str, object]) -> int:
    """Most tokens of prompt and response together, from config.json over the family's defaults. Raises ModelError."""
    return _before_long_factors(fields, positive(fields, "max_position_embeddings"))


def stated_context(text: Mapping[str, object]) -> int:
    """The same for a family that transformers computes: the shortest of the lengths that config.json states. Raises ModelError.

    Some families have two of the names for one number, and which one counts is up to transformers.
    """
    stated = (positive(text, name, _MAX_SIZE["max_position_embeddings"]) for name in _CONTEXT_FIELDS if text.get(name) is not None)
    return _before_long_factors(text, min(stated, default=_UNLIMITED))


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file of a model folder. Raises ModelError if the file is missing, too large or holds none."""
    most = most_bytes(path.name) or _FILE_BYTES
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(most + 1) if regular else None
    except OSError as error:
        raise ModelError(f"cannot read the model's {path.name} ({error.strerror}); give a folder in Hugging Face layout") from error
    if data is None:
        raise ModelError(f"the model's {path.name} is no file but a pipe, a device or a folder; give a folder in Hugging Face layout")
    if len(data) > most:
        raise ModelError(f"{path.name} has more than {most} bytes; take the model's own file")
    return _parse_object(data, path.name)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a pipe that nobody writes to as well, and reads nothing from it: the caller may hold a thread of the gateway."""
    return os.open(path, flags | os.O_NONBLOCK)


def refuse_quantised(config: Mapping[str, object]) -> None:
    """Raises ModelError if config.json says that the weights are quantised."""
    stated = config.get("quantization_config")
    if not isinstance(stated, dict | None):
        raise ModelError(f"config.json has quantization_config = {reprlib.repr(stated)}; remove it, or take the model's own file")
    if stated:
        method = stated.get("quant_method")
        raise ModelError(
            f"config.json says that the weights are quantised (quantization_config: {reprlib.repr(method)}), which are not trained; load "
            "the model with transformers (mxfp4 with Mxfp4Config(dequantize=True), else call `dequantize()`), save it in bfloat16 with "
            "`save_pretrained`, and give that folder"
        )


def _without_auto_map(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_auto_map(item) for key, item in value.items() if key != "auto_map"}
    return [_without_auto_map(item) for item in value] if isinstance(value, list) else value


def _architecture(config: Mapping[str, object]) -> object:
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and len(named) == 1 else None


def _family(config: Mapping[str, object]) -> Family:
    architecture = _architecture(config)
    family = family_of_architecture(architecture) or transformers_family_of(architecture)
    if family is None:
        allowed = ", ".join(family.architecture for family in MODEL_FAMILIES.values())
        named = _LONGER.repr(config.get("architectures"))
        no_name = f"has architectures = {named}; it must be a list of one name"
        fault = no_name if architecture is None else f"names the architectures {named}, which are not supported"
        code = "; the code that it names is never run" if config.get("auto_map") else ""
        raise ModelError(
            f"config.json {fault}{code}; use one of {allowed}, or of the families that transformers computes (docs/families.md)"
        )
    if config.get("model_type") != family.model_type:
        raise ModelError(
            f"config.json says model_type {reprlib.repr(config.get('model_type'))} with architecture {family.architecture}; "
            f"set model_type to {family.model_type!r}, or take the folder that belongs together"
        )
    refuse_quantised(config)
    return family


def long_factors_begin(fields: Mapping[str, object]) -> int | None:
    """With longrope, the length from which its long factors count; None without it, or if it is not stated. Raises ModelError."""
    rope, name = fields.get("rope_scaling") or fields.get("rope_parameters"), "original_max_position_embeddings"
    if not isinstance(rope, dict) or str(rope.get("rope_type") or rope.get("type")) not in LONGROPE:
        return None
    stated = fields.get(name) or rope.get(name)
    return None if stated is None else positive({name: stated}, name, MAX_CONTEXT)


def _before_long_factors(fields: Mapping[str, object], longest: int) -> int:
    """`longest`; with longrope at most `original_max_position_embeddings`.

    Beyond, the rotation of a sequence's first tokens depends on its length, which is not known when they are sampled.
    """
    begin = long_factors_begin(fields)
    return longest if begin is None else min(longest, begin)


def _parse_object(data: bytes, what: str) -> dict[str, object]:
    if data.startswith(codecs.BOM_UTF8):
        raise ModelError(f"{what} begins with a byte order mark, which transformers does not read; save it as UTF-8 without one")
    try:
        value = parse_json(data, MAX_TENSORS + _SMALL_INDEX if what == INDEX else _MAX_VALUES, constant=_transformers_constant)
    except ValueError as error:
        raise ModelError(f"{what} is not JSON ({error}); download or save it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{what} is not a JSON object; download or save it again")
    return value


def _transformers_constant(text: str) -> object:
    """`Infinity` as transformers 5 writes it: published configurations of Mamba layers have the bare word, which is not JSON."""
    if text == "NaN":
        raise ValueError("NaN is not a number of JSON")
    return {"__float__": text}
