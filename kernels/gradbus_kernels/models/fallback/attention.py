"""Attention over packed sequences as transformers' models call it.

transformers gives an attention function every keyword of the model's forward pass, so the layout arrives here. It makes no mask for a
function that has no maker of masks under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from gradbus.errors import ModelError
from gradbus_kernels.operators import PrefixLayout, prefix_shared_attention
from gradbus_kernels.operators.base.softcap import Softcapped

PACKED_ATTENTION: Final = "gradbus_packed"
_NOT_COMPUTED: Final = ("s_aux", "position_bias")


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **given: Any,
) -> tuple[Tensor, None]:
    """Attention of `query` `[1, heads, N, D]`, `key` `[1, kv_heads, N, D]` and `value` `[1, kv_heads, N, E]`, E ≤ D; `[1, N, heads, E]`.

    Raises ModelError for a model whose attention is another function of them.
    """
    layout = given.get("layout")
    asked = [name for name in _NOT_COMPUTED if given.get(name) is not None]
    if not isinstance(layout, PrefixLayout) or attention_mask is not None or asked:
        what = ", ".join(asked) or "attention of its own"
        raise ModelError(f"{type(module).__name__} asks for {what}, which is not computed over packed sequences; choose another model")
    width = value.shape[-1]
    values = functional.pad(value, (0, query.shape[-1] - width))
    packed = [tensor[0].transpose(0, 1) for tensor in (query, key, values)]
    # Qwen2-MoE tells its window to the mask alone, which is not made here; every other family gives it, or None.
    window = given.get("sliding_window", getattr(module, "sliding_window", None))
    attended = prefix_shared_attention(packed[0], packed[1], packed[2], layout, _scale(given, query.shape[-1]), window)
    return attended[None, :, :, :width].contiguous(), None


def _scale(given: Mapping[str, Any], head_dim: int) -> Softcapped:
    stated = given.get("scaling")
    return Softcapped(head_dim**-0.5 if stated is None else stated, given.get("softcap"))


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
