"""Sizes of the families that transformers computes, by the numbers that their config.json states.

Families have names of their own for the same number. A feed-forward part four times as wide as the hidden states, or of no stated width,
has two matrices; any other is gated and has three. Linear attention has about the weights of attention; of other layers with a state only
the files of the weights tell how large they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.config_fields import check_counts
from gradbus.formats.hf_model import CONFIG, read_object, stated_context, weight_files
from gradbus.formats.safetensors import read_headers
from gradbus.formats.transformers_families import TransformersFamily
from gradbus.plan.model_size import ModelSize

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden size": ("hidden_size", "n_embd", "d_model"),
    "number of layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "number of heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
    "key heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "chosen experts": ("num_experts_per_tok", "moe_topk", "moe_k", "moe_router_topk"),
    "width of an expert": ("moe_intermediate_size", "intermediate_size"),
    "width beside experts": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "experts for all": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "layers before experts": ("first_k_dense_replace",),
}
_CLASSIC: Final = 4
_STATES: Final = ("mamba", "ssm", "lru", "conv_L", "linear_attn_config", "state_size", "rwkv")
"""Parts of fields' names of families whose layers have a state."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Elements of a layer."""

    attention: int
    fed: int
    """Weights of the feed-forward part that a token goes to."""
    experts: int
    """Weights of all experts; 0 without."""
    unchosen: float
    kept: tuple[int, ...]
    """Widths that transformers' own layer keeps for a backward pass."""

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.attention + (self.fed + int(self.experts * self.unchosen))


def stated_size(folder: Path, family: TransformersFamily) -> ModelSize:
    """Sizes by config.json, and the number of parameters by the weights if they are there. Raises ModelError if that is not enough."""
    config = read_object(folder / CONFIG)
    fields = family.text_config(config)
    check_counts(fields)
    numbers = _Numbers(fields, family.architecture)
    hidden, vocabulary = numbers.stated("hidden size"), numbers.stated("vocabulary")
    layers, first = numbers.stated("number of layers"), numbers.get("layers before experts", 0)
    dense, mixed = _layer(numbers, with_experts=False), _layer(numbers, with_experts=True)
    every = [mixed if mixed.experts and at >= first else dense for at in range(layers)]
    matrices = vocabulary * hidden * (1 if family.is_tied(config) else 2)
    heads, key_heads, head = numbers.heads
    size = ModelSize(
        architecture=family.architecture,
        context_length=stated_context(fields),
        vocabulary=vocabulary,
        linears=(),
        parameters=matrices + sum(layer.parameters for layer in every),
        largest=vocabulary * hidden,
        embedding=vocabulary * hidden,
        own_head=matrices - vocabulary * hidden,
        active=sum(layer.attention + layer.fed for layer in every),
        experts=sum(layer.experts for layer in every),
        unchosen=mixed.unchosen,
        joined=0,
        layers=layers,
        hidden=hidden,
        attention=layers * heads * head,
        cached=layers * (numbers.latent or 2 * key_heads * head),
        kept=tuple(layer.kept for layer in every),
    )
    stored = _stored(folder)
    if not stored:
        numbers.refuse_states()
        return size
    return replace(size, parameters=stored, active=size.active + stored - size.parameters)


class _Numbers:
    """The numbers of a config.json, by what they mean."""

    def __init__(self, fields: Mapping[str, Any], architecture: str) -> None:
        self.fields, self._architecture = fields, architecture

    def get(self, meaning: str, default: int) -> int:
        """The first that is stated."""
        found = (self.fields.get(name) for name in _NAMES[meaning])
        return next((number for number in found if isinstance(number, int) and not isinstance(number, bool)), default)

    def stated(self, meaning: str) -> int:
        """The same. Raises ModelError if there is none."""
        number = self.get(meaning, 0)
        if number < 1:
            names = " or ".join(_NAMES[meaning])
            message = f"config.json of {self._architecture} states no {meaning} ({names}), so what it needs cannot be known from it"
            raise ModelError(f"{message}; try one step of the run, or plan with a model of a family of docs/families.md")
        return number

    def refuse_states(self) -> None:
        """Raises ModelError for layers whose weights do not follow from these numbers."""
        found = next((name for name in self.fields if any(part in name for part in _STATES)), None)
        if found is not None:
            message = f"{self._architecture} has layers with a state ({found}), whose weights do not follow from config.json"
            raise ModelError(f"{message}; name a folder that has the weights too by --model DIR: only their headers are read")

    @property
    def heads(self) -> tuple[int, int, int]:
        """Heads, key heads, and elements of a head."""
        heads = self.stated("number of heads")
        head = self.fields.get("head_dim")
        key_heads = min(heads, max(1, self.get("key heads", heads)))
        return heads, key_heads, head if isinstance(head, int) and head > 0 else self.stated("hidden size") // heads

    @property
    def latent(self) -> int:
        """Elements of a position that attention by low-rank keys and values (DeepSeek-AI 2024, arXiv:2405.04434) keeps; 0: another."""
        return self.number("kv_lora_rank") + self.number("qk_rope_head_dim") if self.number("kv_lora_rank") else 0

    def number(self, name: str) -> int:
        """A field that few families have; 0 without it."""
        found = self.fields.get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _layer(numbers: _Numbers, with_experts: bool) -> _Layer:
    hidden = numbers.stated("hidden size")
    heads, key_heads, head = numbers.heads
    queries, keys = heads * head, key_heads * head
    inner = numbers.get("intermediate size", _CLASSIC * hidden)
    matrices = 2 if inner == _CLASSIC * hidden else 3
    # Each norm: its input, the same divided by its root, and the product's input; each sum of hidden states.
    kept = [queries + 2 * keys, queries + keys, queries, *[hidden] * 8]
    count, chosen = numbers.get("experts", 0), numbers.get("chosen experts", 0)
    if not with_experts or count < 2 or chosen < 1:
        return _Layer(_attention(numbers), matrices * hidden * inner, 0, 0.0, (*kept, *[inner] * (matrices + 1)))
    width = numbers.get("width of an expert", inner)
    beside = numbers.get("width beside experts", numbers.get("experts for all", 0) * width)
    one = 3 * hidden * width
    kept += [*[chosen * hidden] * 3, *[chosen * width] * 5, 3 * beside]
    return _Layer(_attention(numbers), one * chosen + 3 * hidden * beside, one * count, 1.0 - min(chosen, count) / count, tuple(kept))


def _attention(numbers: _Numbers) -> int:
    """Weights of attention."""
    hidden = numbers.stated("hidden size")
    heads, key_heads, head = numbers.heads
    if not numbers.latent:
        return hidden * (2 * heads + 2 * key_heads) * head
    return sum(_latent_weights(numbers, hidden, heads))


def _latent_weights(numbers: _Numbers, hidden: int, heads: int) -> Iterator[int]:
    turned, plain, values = (numbers.number(name) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    rank, queries = numbers.number("q_lora_rank"), heads * (turned + plain)
    yield rank * (hidden + queries) if rank else hidden * queries
    latent = numbers.number("kv_lora_rank")
    yield hidden * (latent + turned) + latent * heads * (plain + values)
    yield heads * values * hidden


def _stored(folder: Path) -> int:
    """Elements of all weights in the folder; 0 if they are not there."""
    if not any(folder.glob("*.safetensors")):
        return 0
    return sum(prod(tensor.shape) for tensor in read_headers([folder / name for name in weight_files(folder)]).values())
