"""What versions have in common with the folder of their base model: all names, and the bits of tensors that no run trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import torch

from gradbus.errors import ModelError
from gradbus.formats.model_weights import read_name_plan
from gradbus.formats.reward_model import check_reward_weights, read_reward_config
from gradbus.formats.safetensors import StoredTensor, header, item_bytes, mapped, refuse_tensors
from gradbus_kernels.models.files import stored_tensors
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch, TensorFile

_BITS: Final[Mapping[torch.dtype, torch.dtype]] = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


class BaseFolder:
    """The folder of a run's base model, whose headers are read once."""

    def __init__(self, folder: Path, *, scores: bool = False) -> None:
        """`scores`: the folder of a reward model. Raises ModelError for weights that are not the model's, as far as their headers say."""
        self._folder = folder
        self._plan = check_reward_weights(folder, read_reward_config(folder)) if scores else read_name_plan(folder)

    def check_identity(self, weights: LazyTensors, dtype: torch.dtype) -> None:
        """Raises ModelError unless a version of these weights in `dtype` would be the folder's model, by names and in every bit.

        `weights` are those of a learner that has only loaded the folder. A tensor that the folder stores in another dtype is rounded to
        float32, then to `dtype`, as the learner does. Reads one tensor at a time.
        """
        trained = self._plan.trained
        refuse_tensors(trained.keys() ^ weights.shapes.keys(), "are only in the folder or only in a version of its model")
        stored = ((name, tensor) for name, tensor in stored_tensors(self._folder) if name in trained)
        if differing := {name for name, tensor in stored if not _same_bits(tensor.float(), weights[name], dtype)}:
            shown = ", ".join(sorted(differing)[:3])
            raise ModelError(
                f"the trainer would publish other weights than the model's folder has: {len(differing)} tensors differ ({shown}); this is "
                "a fault of Gradbus or of this machine's memory, so report it with the model's config.json, and train another model until "
                "then"
            )

    def write_frozen(self, scratch: Scratch) -> TensorFile | None:
        """One file with the folder's frozen tensors, in the bits of the folder; None if there are none. Raises StorageError."""
        frozen = self._plan.frozen
        # The largest elements come first, which keeps all of them aligned.
        ordered = dict(sorted(frozen.items(), key=lambda entry: (-item_bytes(entry[1].dtype), entry[0])))
        return scratch.write_file(tuple(sorted(frozen)), lambda file: _copy(ordered, file)) if frozen else None


def _same_bits(stored: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> bool:
    ours, theirs = (tensor.detach().to("cpu", dtype).contiguous().view(_BITS[dtype]) for tensor in (weight, stored))
    return torch.equal(ours, theirs)


def _copy(tensors: Mapping[str, StoredTensor], file: BinaryIO) -> None:
    file.write(header({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}))
    for tensor in tensors.values():
        with mapped(tensor.file) as content, memoryview(content) as view, view[tensor.start : tensor.end] as part:
            file.write(part)
