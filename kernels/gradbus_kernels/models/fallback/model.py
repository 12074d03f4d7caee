"""transformers' model of a family that Gradbus's decoder does not compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from gradbus.errors import ModelError
from gradbus.formats.transformers_families import TransformersFamily
from gradbus_kernels.models.fallback.configuration import logits_scale
from gradbus_kernels.models.fallback.rows import RowBlocks, row_blocks
from gradbus_kernels.models.fallback.stored_names import StoredNames
from gradbus_kernels.models.language_model import LanguageModel, Weight
from gradbus_kernels.models.packing import TokenSequence, pack
from gradbus_kernels.operators import PackedGroups

_NETWORK = "network."


class TransformersLM(LanguageModel):
    """The last hidden states by transformers' base model; its head is left to the operators on it, and no loss of routers is added."""

    def __init__(self, family: TransformersFamily, network: PreTrainedModel, names: StoredNames, packed: bool) -> None:
        """`packed`: sequences side by side, in `packed_attention`; otherwise one row each."""
        super().__init__()
        self.family, self.shares_prompts = family, packed
        self.network: Any = network  # typed in part
        self.vocab_size = len(self.head_weight)
        self._names = names
        self._scale = logits_scale(network.config)

    @property
    def head_weight(self) -> nn.Parameter:
        """See `LanguageModel`."""
        return cast("nn.Parameter", self.network.get_output_embeddings().weight)

    def set_checkpointing(self, on: bool) -> None:
        """See `LanguageModel`."""
        layers: list[Any] = [module for module in self.network.modules() if isinstance(module, GradientCheckpointingLayer)]
        if on and not layers:
            raise ModelError(f"{self.family.architecture} computes no layer again; set trainer.gradient_checkpointing = false")
        for layer in layers:
            # Layers ask for `training` too. Nothing else in them depends on it, because all dropout is off.
            layer.gradient_checkpointing = layer.training = on
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)

    def pack(self, sequences: Sequence[TokenSequence]) -> PackedGroups | RowBlocks:
        """See `LanguageModel`."""
        return pack(sequences, self.device) if self.shares_prompts else row_blocks(sequences, self.device)

    def stored(self, parameters: Mapping[str, Weight]) -> Mapping[str, Tensor]:
        """See `LanguageModel`."""
        own = dict(self.network.named_buffers()) | dict(self.network.named_parameters())
        return self._names.trained_views(own | {name.removeprefix(_NETWORK): parameter for name, parameter in parameters.items()})

    def forward(self, batch: PackedGroups | RowBlocks) -> Tensor:
        """Hidden states `[N, H]`, scaled by what the logits are multiplied by."""
        if isinstance(batch, RowBlocks):
            hidden = torch.cat([self._hidden(input_ids=block).flatten(0, 1) for block in batch.blocks])
        else:
            hidden = self._hidden(input_ids=batch.input_ids, position_ids=batch.position_ids, layout=batch.layout)[0]
        hidden = hidden.to(self.head_weight.dtype)
        return hidden if self._scale == 1.0 else hidden * self._scale

    def _hidden(self, **inputs: object) -> Tensor:
        hidden: Tensor = self.network.base_model(**inputs, use_cache=False).last_hidden_state
        return hidden
