"""The model that a run of kind `reward_model` starts from: a language model's files with a scoring head of zeros."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.hf_model import CONFIG, INDEX, most_bytes, weight_files
from gradbus.formats.reward_model import REWARD_ARCHITECTURES, SCORE, names_reward_model
from gradbus.formats.safetensors import header, read_headers
from gradbus.ids import is_digest
from gradbus.objects import ObjectStore
from gradbus.strict_json import parse_json
from gradbus_gateway.intake.model.outline import write_outline

_FLOAT32_BYTES: Final = 4


async def is_reward_model(objects: ObjectStore, files: Mapping[str, str]) -> bool:
    """Whether the files (name to digest) are a reward model's, as far as config.json says; False if it is not stored."""
    digest = files.get(CONFIG, "")
    size = await objects.blob_size(digest) if is_digest(digest) else None
    if size is None or size > (most_bytes(CONFIG) or 0):
        return False
    content = await objects.get_blob(digest)
    try:
        config = await asyncio.to_thread(parse_json, content)
    except ValueError:
        return False
    return isinstance(config, dict) and names_reward_model(config)


async def with_scoring_head(objects: ObjectStore, files: Mapping[str, str]) -> dict[str, str]:
    """The files (name to digest) of the reward model that begins with the language model of these checked and stored files.

    The weights are not copied: beside them comes a shard with the head. May be repeated: the result has the same digests. Raises ModelError
    for a family without reward models.
    """
    config = json.loads(await objects.get_blob(files[CONFIG]))
    architecture = REWARD_ARCHITECTURES.get(config.get("model_type"))
    if architecture is None:
        raise ModelError(f"there are no reward models of {config.get('model_type')!r}; use one of {', '.join(REWARD_ARCHITECTURES)}")
    with tempfile.TemporaryDirectory(prefix="gradbus-model-") as name:
        folder = Path(name)
        await write_outline(objects, files, folder)
        weights = await asyncio.to_thread(weight_files, folder)
        tensors = await asyncio.to_thread(read_headers, [folder / file for file in weights])
    shards = {file: f"model-{at:05d}-of-{len(weights) + 1:05d}.safetensors" for at, file in enumerate(weights, start=1)}
    head = f"model-{len(weights) + 1:05d}-of-{len(weights) + 1:05d}.safetensors"
    shape = (1, int(config["hidden_size"]))
    index = {"weight_map": {tensor: shards[stored.file.name] for tensor, stored in tensors.items()} | {SCORE: head}}
    config |= {"architectures": [architecture], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    config.pop("num_labels", None)  # of another head
    made = {
        CONFIG: json.dumps(config, indent=2),
        INDEX: json.dumps({"metadata": {}} | index, indent=2),
    }
    kept = {shards.get(file, file): digest for file, digest in files.items() if file not in made}
    kept |= {file: await objects.put_blob(content.encode()) for file, content in made.items()}
    return kept | {head: await objects.put_blob(header({SCORE: ("F32", shape)}) + bytes(_FLOAT32_BYTES * shape[1]))}
