"""A decoder and a head that scores a sequence by the hidden state of its last token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradbus.formats.model_config import ModelConfig
from gradbus.formats.reward_model import check_reward_weights, read_reward_config
from gradbus_kernels.models.causal_lm import correct_routers
from gradbus_kernels.models.decoder import Decoder
from gradbus_kernels.models.files import check_complete, check_stored, stored_tensors
from gradbus_kernels.models.loading import loading
from gradbus_kernels.models.packing import TokenSequence, pack


class RewardModel(nn.Module):
    """`model` and `score`, named as in Hugging Face's sequence classification. The head is float32, whatever the decoder's dtype is."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config).to(dtype)
        self.score = nn.Linear(config.hidden_size, 1, bias=False, dtype=torch.float32)

    def forward(self, sequences: Sequence[TokenSequence], device: torch.device | None = None) -> Tensor:
        """The scores of `sequences` (at least one): float32 `[B]`, each of the last token of prompt and response.

        One forward pass; sequences are packed without padding. It runs on `device`, unless given that of the weights. NaN in the weights
        comes out as NaN.
        """
        longer = [_Continued(sequence.prompt_ids, np.append(sequence.token_ids, 0)) for sequence in sequences]
        batch = pack(longer, device or self.score.weight.device)
        hidden: Tensor = self.model(batch)
        ends = [end - 1 for end in accumulate(len(sequence.token_ids) for sequence in longer)]
        scores: Tensor = self.score(hidden.index_select(0, batch.selected[ends]).float())
        return scores.squeeze(-1)


@dataclass(frozen=True, slots=True)
class _Continued:
    """A sequence with one token more: packing has the positions that predict a response's tokens, and its last token is one by that."""

    prompt_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]


def load_reward_model(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> RewardModel:
    """The reward model in `folder` (config.json, safetensors), its decoder's weights cast to `dtype`. No code of the folder is run.

    Raises ModelError when the folder cannot be read or is no reward model of a family of `REWARD_ARCHITECTURES`, when weights are
    another model's or not finite, and OutOfMemoryError.
    """
    torch.empty(0, device=device)  # a device that is not here is no fault of the model
    with loading():
        model = empty_reward_model(folder, dtype).to_empty(device=device)
        _fill(model, folder)
        return correct_routers(model, folder, torch.device(device))


def empty_reward_model(folder: Path, dtype: torch.dtype = torch.float32) -> RewardModel:
    """The reward model without its weights, on the device `meta`. Raises ModelError for what configuration and headers show."""
    with loading():
        config = read_reward_config(folder)
        check_reward_weights(folder, config)
        with torch.device("meta"):
            return RewardModel(config, dtype)


def checked_reward_tensors(model: RewardModel, folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The stored weights of the model, each with its name, one at a time. Raises ModelError for weights that are not the model's."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    seen: set[str] = set()
    for name, tensor in stored_tensors(folder):
        if name in shapes:
            check_stored(name, tensor, shapes[name])
            yield name, tensor
            seen.add(name)
    check_complete(shapes.keys() - seen)


@torch.no_grad()
def _fill(model: RewardModel, folder: Path) -> None:
    parameters = dict(model.named_parameters())
    for name, tensor in checked_reward_tensors(model, folder):
        parameters[name].copy_(tensor)
