"""Damage to a model folder: functions that change its files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]
WEIGHTS_FILE = "model.safetensors"
_TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}


def text(name: str, content: str) -> Damage:
    """Writes another content into a file."""
    return lambda folder: _write(folder / name, content.encode())


def fields(name: str, **changes: Any) -> Damage:
    """Changes fields of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def chat_template(template: str) -> Damage:
    """Replaces the chat template, wherever the folder has it."""

    def change(folder: Path) -> None:
        fields("tokenizer_config.json", chat_template=template)(folder)
        text("chat_template.jinja", template)(folder)

    return change


def tokenizer(path: str, value: Any) -> Damage:
    """Replaces one part of tokenizer.json, e.g. `model.vocab`."""

    def change(folder: Path) -> None:
        whole = json.loads((folder / "tokenizer.json").read_text())
        part, names = whole, path.split(".")
        for name in names[:-1]:
            part = part[name]
        part[names[-1]] = value
        (folder / "tokenizer.json").write_text(json.dumps(whole))

    return change


def tensors(change: Callable[[dict[str, Any]], None]) -> Damage:
    """Loads the weights, changes them and writes them again."""

    def rewrite(folder: Path) -> None:
        from safetensors.torch import load_file, save_file  # noqa: PLC0415 - torch is slow to import

        found = load_file(folder / WEIGHTS_FILE)
        change(found)
        save_file(found, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    return rewrite


def header(change: Callable[[dict[str, Any]], None]) -> Damage:
    """Changes the header of the weights' file, and leaves the data as it is."""

    def rewrite(folder: Path) -> None:
        content = (folder / WEIGHTS_FILE).read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        entries = json.loads(content[8 : 8 + size])
        change(entries)
        new = json.dumps(entries).encode()
        (folder / WEIGHTS_FILE).write_bytes(struct.pack("<Q", len(new)) + new + content[8 + size :])

    return rewrite


def weights(content: bytes) -> Damage:
    """Replaces the weights' file."""
    return lambda folder: _write(folder / WEIGHTS_FILE, content)


def cut_weights(folder: Path) -> None:
    """Cuts the second half of the weights' file off."""
    path = folder / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def second_shard(folder: Path) -> None:
    """Stores every tensor in a second file too."""
    _write(folder / "other.safetensors", (folder / WEIGHTS_FILE).read_bytes())


def nested(depth: int) -> str:
    """JSON arrays inside each other."""
    return "[" * depth + "]" * depth


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def family(model_type: str, *changes: Damage, **sizes: Any) -> Damage:
    """Makes a tiny model of another family with the folder's tokenizer, and then these changes."""

    def rewrite(folder: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - slow to import

        stated = json.loads((folder / "config.json").read_text())
        kept = {name: stated[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
        config = AutoConfig.for_model(model_type, **_TINY | kept | sizes)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        for change in changes:
            change(folder)

    return rewrite


def as_scorer(folder: Path) -> None:
    """Makes a reward model of a policy: every score is a number near 0."""
    stated = json.loads((folder / "config.json").read_text())
    architecture = stated["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")
    fields("config.json", architectures=[architecture], id2label={"0": "score"})(folder)

    def change(found: dict[str, Any]) -> None:
        found.pop("lm_head.weight", None)
        found["score.weight"] = found["model.norm.weight"][None] / stated["hidden_size"]

    tensors(change)(folder)
