"""What trainer and reference ask of a causal language model, whoever computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import Tensor, device, nn

from gradbus.errors import ModelError
from gradbus.formats.hf_model import Family
from gradbus_kernels.models.packing import Packed, TokenSequence
from gradbus_kernels.operators import Softcapped

Weight = TypeVar("Weight", bound=Tensor)


class LanguageModel(nn.Module):
    """A decoder and its head; `forward` of a batch that `pack` made gives the hidden states `[N, H]`, which the head multiplies."""

    family: Family
    vocab_size: int
    shares_prompts = True
    """Whether `pack` computes a prompt once for its rows."""

    @property
    def head_weight(self) -> nn.Parameter:
        """`[vocab_size, hidden_size]`."""
        raise NotImplementedError

    @property
    def device(self) -> device:
        """The device of the weights."""
        return self.head_weight.device

    def tempered(self, temperature: float) -> float | Softcapped:
        """What operators on the head take for this temperature: with the bound of the logits, if the model has one."""
        return temperature

    def set_checkpointing(self, on: bool) -> None:
        """Whether a backward pass computes each layer again instead of keeping its activations. Raises ModelError."""
        raise NotImplementedError

    def replay_routes(self) -> None:
        """From now on the tokens of sequences that have `routes` go to the experts that these name. Raises ModelError."""
        raise ModelError(f"routes are not replayed in {self.family.architecture}; set rollout.routing_replay = false")

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """By their names in this module."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def pack(self, sequences: Sequence[TokenSequence]) -> Packed:
        """The batch of `sequences` (at least one)."""
        raise NotImplementedError

    def stored(self, parameters: Mapping[str, Weight]) -> Mapping[str, Tensor]:
        """Views of parameters, or of tensors in their shapes, by the names that the model's folder has for them."""
        return parameters
