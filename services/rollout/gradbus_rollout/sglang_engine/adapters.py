"""A version that is adapters: the folder that the server reads, and the proof that it samples with them.

The server fuses q, k and v, and gate and up, and takes adapters for whole groups only: of a part of one it ignores tensors, or
ends. The partners that a run does not train are put beside the version's file, all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gradbus.adapters import ADAPTER_FILE, CONFIG_FILE, adapter_config, adapter_shapes
from gradbus.errors import AttestationError, ModelError
from gradbus.spec import LoraSpec
from gradbus.tensor_files import StoredTensor, header
from gradbus_rollout.engine import VersionProbe
from gradbus_rollout.sglang_engine.api import ServerApi
from gradbus_rollout.sglang_engine.folder import new_version_folder, place_shard

_FUSED: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_ZEROS_FILE: Final = "zeros.safetensors"
_FLOAT32_BYTES: Final = 4
_NOISE: Final = 8.0
"""How many times the server and the trainer may differ more than they do for the base model."""
_LEAST_NOISE: Final = 2e-6
_ROUNDING: Final = 0.125
"""Share of the adapters' effect that a server may miss which rounds them to its own dtype."""


def served_modules(lora: LoraSpec) -> list[str]:
    """Linear layers that the server has adapters for: those of the run, and their partners."""
    groups = [group for group in _FUSED if set(group) & set(lora.target_modules)]
    return sorted({*lora.target_modules, *(name for group in groups for name in group)})


def stored_adapters(model: Mapping[str, StoredTensor], lora: LoraSpec) -> dict[str, tuple[int, ...]]:
    """Name to shape of what a version of this model holds."""
    return adapter_shapes({name: tensor.shape for name, tensor in model.items()}, lora)


def make_adapter_folder(root: Path, model: Mapping[str, StoredTensor], lora: LoraSpec, shards: Sequence[Path], copy: bool) -> Path:
    """A fresh folder under `root` in peft's layout. Raises ModelError for a version in several files."""
    if len(shards) != 1:
        raise ModelError(f"adapters come in one file, and these in {len(shards)}; publish the version again")
    folder = new_version_folder(root)
    place_shard(shards[0], folder / ADAPTER_FILE, copy)
    served = lora.model_copy(update={"target_modules": tuple(served_modules(lora))})
    (folder / CONFIG_FILE).write_bytes(adapter_config(served))
    absent = stored_adapters(model, served).items() - stored_adapters(model, lora).items()
    if absent:
        _write_zeros(folder / _ZEROS_FILE, dict(sorted(absent)))
    return folder


async def prove_adapters(api: ServerApi, name: str, version: int, probe: VersionProbe) -> None:
    """Compares what the server computes for the probe with what the trainer did.

    They differ for the base model too, by rounding; how much, the server is asked as well. Raises AttestationError when they
    differ more with the adapters: it ignores them, or a part of them, or takes others.
    """
    base = _distance(await api.prompt_logprobs(probe.token_ids, None), probe.base_logprobs)
    found = _distance(await api.prompt_logprobs(probe.token_ids, name), probe.logprobs)
    effect = _distance(probe.logprobs, probe.base_logprobs)
    if not found <= _NOISE * max(base, _LEAST_NOISE) + _ROUNDING * effect:
        raise AttestationError(
            f"the server does not sample with the adapters of version {version}: its log-probabilities are up to {found:.2g} off the "
            f"trainer's, without adapters {base:.2g}, and the adapters move them by {effect:.2g}; it is loaded again"
        )


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference; not a number where there is none to take."""
    if len(one) != len(other) or not one:
        return math.nan
    return max(abs(first - second) for first, second in zip(one, other, strict=True))


def _write_zeros(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    with file.open("wb") as stream:
        stream.write(header({name: ("F32", shape) for name, shape in shapes.items()}, _FLOAT32_BYTES))
        stream.truncate(stream.tell() + _FLOAT32_BYTES * sum(map(math.prod, shapes.values())))
