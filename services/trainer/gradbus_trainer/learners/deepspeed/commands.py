"""Commands of rank 0 to the other ranks: a name, arguments and tensors, as JSON and safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from gradbus.algorithms import UNMARKED, SampleMarks
from gradbus_trainer.step.batch import Batch, Origin, TrainSample

Name = Literal["open", "train", "weight", "moment", "probe", "restore", "release", "rest", "stop"]
_LENGTH_BYTES = 8
_ROWS: Final = ("teacher_rows", "behaviour_rows")
_NO_ORIGIN = Origin(-1, -1)
"""In place of that of a row which is a whole sample."""


@dataclass(frozen=True, slots=True)
class Command:
    """One operation that all ranks do together. `rest` does nothing; waiting ranks see that rank 0 is alive."""

    name: Name
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The bytes that are broadcast."""
        header = json.dumps({"name": self.name, "arguments": dict(self.arguments)}).encode()
        return len(header).to_bytes(_LENGTH_BYTES, "little") + header + safetensors.torch.save(dict(self.tensors))

    @classmethod
    def from_bytes(cls, content: bytes) -> Command:
        """The reverse of `to_bytes`."""
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        header = json.loads(content[_LENGTH_BYTES:end])
        return cls(header["name"], header["arguments"], safetensors.torch.load(content[end:]))


def batch_tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """The batch's rows side by side, with the length of each."""
    samples = batch.samples
    columns = {
        "prompt_ids": np.concatenate([sample.prompt_ids for sample in samples]),
        "prompt_lengths": np.array([len(sample.prompt_ids) for sample in samples]),
        "token_ids": np.concatenate([sample.token_ids for sample in samples]),
        "lengths": np.array([len(sample.token_ids) for sample in samples]),
        "behaviour_logprobs": np.concatenate([sample.behaviour_logprobs for sample in samples]),
        "trainable": np.concatenate([sample.trainable for sample in samples]),
        "advantages": np.concatenate([sample.advantages for sample in samples]),
    }
    references = [sample.reference_logprobs for sample in samples if sample.reference_logprobs is not None]
    if len(references) == len(samples):
        columns["reference_logprobs"] = np.concatenate(references)
    if any(sample.marks != UNMARKED for sample in samples):
        columns["marks"] = np.array([sample.marks for sample in samples])
    for whose in _ROWS:
        found = [getattr(sample, whose) for sample in samples]
        if found[0] is not None:  # then every sample has them
            columns[f"{whose}.ids"], columns[f"{whose}.logprobs"] = (np.concatenate(part) for part in zip(*found, strict=True))
    if samples[0].routes is not None:
        columns["routes"] = np.concatenate([sample.routes for sample in samples])
    if any(sample.origin is not None for sample in samples):
        columns["origins"] = np.array([sample.origin or _NO_ORIGIN for sample in samples])
    return {name: torch.from_numpy(np.array(column)) for name, column in columns.items()}


def batch_of(step: int, tensors: Mapping[str, torch.Tensor]) -> Batch:
    """The reverse of `batch_tensors`."""
    columns = {name: tensor.numpy() for name, tensor in tensors.items()}
    prompts = _rows(columns["prompt_ids"], columns["prompt_lengths"])
    names = ("token_ids", "behaviour_logprobs", "trainable", "advantages", "reference_logprobs")
    rows: dict[str, Any] = {name: _rows(columns[name], columns["lengths"]) for name in names if name in columns}
    rows["origin"] = _origins(columns["origins"]) if "origins" in columns else [None] * len(prompts)
    rows["marks"] = [SampleMarks(*row) for row in columns["marks"].tolist()] if "marks" in columns else [UNMARKED] * len(prompts)
    if "routes" in columns:
        rows["routes"] = _rows(columns["routes"], columns["prompt_lengths"] + columns["lengths"])
    for whose in _ROWS:
        if f"{whose}.ids" in columns:
            parts = (_rows(columns[f"{whose}.{part}"], columns["lengths"]) for part in ("ids", "logprobs"))
            rows[whose] = list(zip(*parts, strict=True))
    return Batch(
        step,
        [TrainSample(prompt_ids=prompt, **{name: parts[n] for name, parts in rows.items()}) for n, prompt in enumerate(prompts)],
    )


def _origins(column: NDArray[Any]) -> list[Origin | None]:
    found = (Origin(*row) for row in column.tolist())
    return [None if origin == _NO_ORIGIN else origin for origin in found]


def _rows(column: NDArray[Any], lengths: NDArray[Any]) -> Sequence[NDArray[Any]]:
    return np.split(column, np.cumsum(lengths)[:-1])
