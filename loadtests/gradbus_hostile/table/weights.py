"""Sizes in config.json, and files of weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gradbus_hostile.damage import WEIGHTS_FILE, cut_weights, fields, header, nested, second_shard, tensors, text, weights
from gradbus_hostile.table.submission import ANY, HARMLESS, REFUSED, REFUSED_OR_FAILED, Submission, model


def _config(field: str, value: object, ends: frozenset[Any] = REFUSED) -> Submission:
    return model(f"config: {field} = {value!r}", fields("config.json", **{field: value}), ends)


CONFIGS: Final = (
    _config("hidden_size", 2**20),
    _config("vocab_size", 2**33),
    _config("num_hidden_layers", 10**7),
    _config("num_hidden_layers", 0),
    _config("hidden_size", -32),
    _config("hidden_size", "32"),
    _config("hidden_size", 32.5),
    _config("hidden_size", True),
    _config("num_attention_heads", 5),
    _config("num_key_value_heads", 3),
    _config("intermediate_size", 10**18),
    _config("head_dim", 3),
    _config("rms_norm_eps", "small"),
    _config("rms_norm_eps", -1.0, REFUSED_OR_FAILED),
    _config("rms_norm_eps", float("nan")),
    _config("rms_norm_eps", 1e38, ANY),
    *(_config("rope_parameters", {"rope_type": "default", "rope_theta": theta}, ANY) for theta in (0, -1e4, 1e308)),
    *(_config("rope_theta", theta, ANY) for theta in (0, -1e4)),
    _config("tie_word_embeddings", "yes", ANY),
    _config("max_position_embeddings", 1),
    _config("max_position_embeddings", 2**40),
    _config("bos_token_id", 10**9, ANY),
    _config("num_labels", 10**9),
    _config("rope_scaling", [1]),
    _config("rope_scaling", {"rope_type": "linear", "factor": 1e-300}, REFUSED_OR_FAILED),
    _config("architectures", ["Evil"]),
    model("config: nested 50,000 deep", text("config.json", nested(50_000))),
    model("config: an array", text("config.json", "[]")),
    model("config: rope_scaling of nobody", fields("config.json", rope_scaling={"rope_type": "evil", "factor": -1})),
)


def _first(found: dict[str, Any], change: Callable[[Any], Any]) -> None:
    name = sorted(found)[0]
    found[name] = change(found[name])


def _filled(value: float) -> Callable[[dict[str, Any]], None]:
    def fill(found: dict[str, Any]) -> None:
        for tensor in found.values():
            tensor.fill_(value)

    return fill


def _beyond_float32(found: dict[str, Any]) -> None:
    found.update({name: tensor.double() * 1e300 for name, tensor in found.items()})


def _unknown(found: dict[str, Any]) -> None:
    found["evil.weight"] = next(iter(found.values())).clone()


def _missing(found: dict[str, Any]) -> None:
    found.pop(sorted(found)[-1])


def _entry(entries: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = entries[sorted(name for name in entries if name != "__metadata__")[number]]
    return found


def _overlap(entries: dict[str, Any]) -> None:
    first, second = _entry(entries), _entry(entries, 1)
    first["data_offsets"] = second["data_offsets"]


def _only_index(folder: Path) -> None:
    """An index that leads out of the folder, in place of the weights."""
    (folder / WEIGHTS_FILE).unlink()
    (folder / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps({"weight_map": {"a": "../../../../etc/passwd"}}))


WEIGHTS: Final = (
    model("weights: all NaN", tensors(_filled(float("nan"))), REFUSED_OR_FAILED),
    model("weights: all 3e38", tensors(_filled(3e38)), REFUSED_OR_FAILED),
    model("weights: all zero", tensors(_filled(0.0)), HARMLESS),
    model("weights: one infinity", tensors(lambda found: _first(found, lambda t: t.fill_(float("inf")))), REFUSED_OR_FAILED),
    model("weights: float64 beyond float32", tensors(_beyond_float32), REFUSED_OR_FAILED),
    model("weights: an empty tensor", header(lambda entries: entries.update({"": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}))),
    model("weights: metadata that is no text", header(lambda entries: entries.update(__metadata__={"format": 1}))),
    model("weights: an unknown tensor", tensors(_unknown)),
    model("weights: a tensor is missing", tensors(_missing)),
    model("weights: another shape", tensors(lambda found: _first(found, lambda t: t[:1].clone()))),
    model("weights: another dtype", tensors(lambda found: _first(found, lambda t: t.long()))),
    model("weights: an empty file", weights(b"")),
    model("weights: a header of 2^63 bytes", weights(b"\xff" * 7 + b"\x7f" + b"{}")),
    model("weights: a header of 32 MiB of spaces", weights((32 << 20).to_bytes(8, "little") + b" " * (32 << 20))),
    model("weights: a header that is no JSON", weights(b"\x04" + b"\0" * 7 + b"evil")),
    model("weights: a pickle", weights(b"\x80\x04\x95evil.")),
    model("weights: half a file", cut_weights),
    model("weights: two tensors in one place", header(_overlap)),
    model("weights: offsets beyond the file", header(lambda entries: _entry(entries).update(data_offsets=[0, 2**50]))),
    model("weights: a shape of 2^62", header(lambda entries: _entry(entries).update(shape=[2**62, 2**62]))),
    model("weights: negative offsets", header(lambda entries: _entry(entries).update(data_offsets=[-8, 8]))),
    model("weights: an index that leads out of the folder", _only_index),
    model("weights: each tensor twice", second_shard, ANY),
)
