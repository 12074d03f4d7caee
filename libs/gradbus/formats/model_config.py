"""The one reading of config.json: the sizes and settings of a forward, and the tensors that follow from them. No torch.

Sizes are bounded before anything is computed from them, so that a reading takes no more time and memory than config.json itself.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from gradbus.errors import ModelError
from gradbus.formats.config_fields import MAX_CONTEXT, MAX_INTERMEDIATE, MAX_LAYERS, flag, misstated, number, stated_flag, value_of
from gradbus.formats.expert_config import ExpertsConfig, expert_shapes, read_experts
from gradbus.formats.frozen import CORRECTION
from gradbus.formats.hf_model import CONFIG, context_length, positive, read_object, refuse_quantised
from gradbus.formats.model_families import ModelFamily, QkNorm, family_of
from gradbus.formats.rope_config import RopeConfig, layers_with_rope, read_ropes

Shape = tuple[int, ...]

_MAX_WIDTH: Final = 1 << 17
_MAX_HEADS: Final = 1024
_MAX_HEAD_DIM: Final = 256  # of the operators for attention
_MAX_HEADS_WIDTH: Final = 16
"""All heads together over the hidden size. Models have up to 2; a small file with wide heads would take a cache of terabytes."""
_MAX_SCALE: Final = 1e6
_SLIDING, _FULL = "sliding_attention", "full_attention"


class Biases(NamedTuple):
    """Which linear layers add a bias: of queries, keys and values; of the attention's output; of the feed-forward part."""

    qkv: bool
    out: bool
    mlp: bool


class LinearShape(NamedTuple):
    """A linear layer of a decoder layer: its name in `self_attn` or `mlp`, its weight `[rows, columns]`, and whether it has a bias."""

    name: str
    rows: int
    columns: int
    biased: bool


class Norms(NamedTuple):
    """RMSNorm in a decoder."""

    eps: float
    """Added to the mean of squares under each root."""
    qk: QkNorm | None
    """Of queries and keys: see `ModelFamily.qk_norm`."""


class Multipliers(NamedTuple):
    """Factors of what the decoder adds up and compares, and bounds of what it compares."""

    embedding: float
    """Of the embeddings, rounded to the dtype of the weights."""
    residual: float
    """Of what attention and feed-forward part add to the hidden states."""
    scores: float
    """Of the products of queries and keys."""
    hidden: float
    """Of the last hidden states, and so of the logits."""
    scores_softcap: float = 0.0
    """Scores x become c · tanh(x / c) with this c; 0: no bound."""
    logits_softcap: float = 0.0
    """The same for the logits."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder with RMSNorm, rotary grouped-query attention, a gated feed-forward part and a linear head with nothing after it."""

    family: ModelFamily
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norms: Norms
    context_length: int
    biases: Biases
    tied: bool
    multipliers: Multipliers
    ropes: tuple[RopeConfig | None, ...]
    """For each layer, its rotary position embedding; None: none."""
    windows: tuple[int | None, ...]
    """For each layer, the number of tokens that a token sees back, itself included; None: all."""
    experts: ExpertsConfig | None = None
    """The experts of some or all layers; None: no layer has any."""

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.windows)

    def experts_of(self, layer: int) -> ExpertsConfig | None:
        """The experts of a decoder layer; None if it has one feed-forward part for all tokens."""
        return self.experts if self.experts and layer in self.experts.layers else None

    @property
    def engine_lacks(self) -> tuple[str, ...]:
        """Features that the embedded engine does not compute."""
        return ("mlp_bias",) if self.biases.mlp else ()

    @property
    def invariant_lacks(self) -> tuple[str, ...]:
        """Features that `numerics = "batch_invariant"` does not compute, in the trainer's `invariant_decoder` or in the engine."""
        windows = ("a sliding window",) if any(window is not None for window in self.windows) else ()
        partial = ("partial_rotary_factor",) if any(rope.partial != 1.0 for rope in self.ropes if rope) else ()
        biases = ("attention_bias",) if self.biases.out else ()
        return (*windows, *partial, *biases, *self.engine_lacks)

    @property
    def served_tokens(self) -> int:
        """Tokens of prompt and response up to which SGLang computes what the trainer does; 0: it computes another model.

        Its classes of some families leave out windows, queries that grow, or biases (`ModelFamily.server_lacks`).
        """
        lacks, lengths = self.family.server_lacks, [self.context_length]
        if "mlp_bias" in lacks and self.biases.mlp:
            return 0
        if "windows" in lacks:
            lengths += [window for window in self.windows if window is not None]
        if "growing_queries" in lacks:
            lengths += [int(rope.scaling["original_max_position_embeddings"]) for rope in self.ropes if rope and rope.query_beta]
        return min(lengths)

    @property
    def attention_layers(self) -> tuple[LinearShape, ...]:
        """The linear layers of `self_attn`, in the order of transformers."""
        hidden, query, key = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self._of_family(
            LinearShape("q_proj", query, hidden, self.biases.qkv),
            LinearShape("k_proj", key, hidden, self.biases.qkv),
            LinearShape("v_proj", key, hidden, self.biases.qkv),
            LinearShape("qkv_proj", query + 2 * key, hidden, self.biases.qkv),
            LinearShape("o_proj", hidden, query, self.biases.out),
        )

    @property
    def mlp_layers(self) -> tuple[LinearShape, ...]:
        """The linear layers of `mlp`, in the order of transformers."""
        hidden, inner, biased = self.hidden_size, self.intermediate_size, self.biases.mlp
        return self._of_family(
            LinearShape("gate_proj", inner, hidden, biased),
            LinearShape("up_proj", inner, hidden, biased),
            LinearShape("gate_up_proj", 2 * inner, hidden, biased),
            LinearShape("down_proj", hidden, inner, biased),
        )

    @property
    def qk_norm_sizes(self) -> tuple[int, int]:
        """Elements of the weights of the norms of queries and of keys; 0 without these norms."""
        match self.norms.qk:
            case "head":
                return self.head_dim, self.head_dim
            case "width":
                return self.heads * self.head_dim, self.kv_heads * self.head_dim
            case None:
                return 0, 0

    @property
    def kv_width(self) -> int:
        """Elements of one position's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim

    def _of_family(self, *shapes: LinearShape) -> tuple[LinearShape, ...]:
        """Those that the family has, in its order."""
        names = self.family.linear_layers
        return tuple(sorted((shape for shape in shapes if shape.name in names), key=lambda shape: names.index(shape.name)))


def read_model_config(folder: Path) -> ModelConfig:
    """Configuration of the model in `folder`; ModelError when config.json is broken or asks for a feature that no forward here computes."""
    stated: Mapping[str, Any] = read_object(folder / CONFIG)
    refuse_quantised(stated)
    family = family_of(stated.get("model_type"))
    fields = family.fields(stated)
    _refuse_unsupported(fields, family)
    return _checked(_model_config(fields, family))


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name to shape of every weight, named as in the folder and ordered as by transformers; `[out, in]` for a linear layer."""
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": embedding}
    dense, sparse = dict(_layer_shapes(config, None)), dict(_layer_shapes(config, config.experts))
    for at in range(config.layers):
        shapes |= {f"model.layers.{at}.{name}": shape for name, shape in (sparse if config.experts_of(at) else dense).items()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    shapes |= {} if config.tied else {"lm_head.weight": embedding}
    return {config.family.stored_name(name): shape for name, shape in shapes.items()}


def redundant_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name to shape of tensors that older folders store and no forward reads: a tied head, and the frequencies of the rotary embedding."""
    frequencies = (config.head_dim // 2,)
    shapes: dict[str, Shape] = {f"model.layers.{number}.self_attn.rotary_emb.inv_freq": frequencies for number in range(config.layers)}
    shapes |= {"lm_head.weight": (config.vocab_size, config.hidden_size)} if config.tied else {}
    return {config.family.stored_name(name): shape for name, shape in shapes.items()}


def correction_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name to shape of what routers add to their scores before they choose."""
    experts = config.experts
    if experts is None or experts.family.scores != "sigmoid":
        return {}
    router = f"{experts.family.block}.{experts.family.router}"
    return {f"model.layers.{number}.{router}.{CORRECTION}": (experts.count,) for number in sorted(experts.layers)}


def _layer_shapes(config: ModelConfig, experts: ExpertsConfig | None) -> Iterator[tuple[str, Shape]]:
    if config.family.has_sinks:
        yield "self_attn.sinks", (config.heads,)
    for owner, layers in (("self_attn", config.attention_layers), ("mlp", () if experts else config.mlp_layers)):
        for name, rows, columns, biased in layers:
            yield f"{owner}.{name}.weight", (rows, columns)
            if biased:
                yield f"{owner}.{name}.bias", (rows,)
        if owner == "self_attn" and config.norms.qk:
            yield from zip(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), ((size,) for size in config.qk_norm_sizes), strict=True)
    if experts:
        yield from expert_shapes(experts, config.hidden_size)
    for name, _ in config.family.norms:
        yield f"{name}.weight", (config.hidden_size,)


def _checked(config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads:
        sizes = f"{config.heads} heads over {config.kv_heads} key-value heads"
        raise ModelError(f"config.json asks for {sizes}, which do not divide; save the model again with transformers")
    if config.head_dim % 2:
        raise ModelError(
            f"config.json asks for heads of {config.head_dim} elements, and an odd number makes no pairs; save the model again"
        )
    for rope in {id(rope): rope for rope in config.ropes if rope}.values():
        if (turned := rope.turned(config.head_dim)) < 2 or turned % 2:
            raise ModelError(f"config.json asks to turn {turned} elements of a head, which make no pairs; save the model again")
        if len(rope.factors) not in (0, turned // 2):
            wrong = f"{len(rope.factors)} numbers in short_factor for {turned // 2} pairs of a head"
            raise ModelError(f"config.json has {wrong}; save the model again with transformers")
    if config.heads * config.head_dim > _MAX_HEADS_WIDTH * config.hidden_size:
        sizes = f"{config.heads} heads of size {config.head_dim} over a hidden size of {config.hidden_size}"
        raise ModelError(f"config.json asks for {sizes}, at most {_MAX_HEADS_WIDTH} times as wide are taken; choose another model")
    return config


def _model_config(fields: Mapping[str, Any], family: ModelFamily) -> ModelConfig:
    heads, kinds = positive(fields, "num_attention_heads", _MAX_HEADS), _layer_kinds(fields, family)
    hidden, vocabulary = positive(fields, "hidden_size", _MAX_WIDTH), positive(fields, "vocab_size")
    for name in ("bos_token_id", "eos_token_id"):
        _check_token_ids(fields, name, vocabulary)
    head_dim = positive(fields, "head_dim", _MAX_HEAD_DIM, default=hidden // heads)
    return ModelConfig(
        family=family,
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=positive(fields, "intermediate_size", MAX_INTERMEDIATE),
        heads=heads,
        kv_heads=positive(fields, "num_key_value_heads", heads, default=heads),
        head_dim=head_dim,
        norms=Norms(number(fields, "rms_norm_eps", 1e-6, most=1.0), family.qk_norm if stated_flag(family.has_qk_norm, fields) else None),
        context_length=context_length(fields),
        biases=Biases(*(stated_flag(stated, fields) for stated in (family.qkv_bias, family.out_bias, family.mlp_bias))),
        tied=stated_flag(family.tied, fields),
        multipliers=_multipliers(fields, family, hidden, head_dim),
        ropes=read_ropes(fields, family, kinds),
        windows=_windows(fields, family, kinds),
        experts=read_experts(fields, family.experts, len(kinds)) if family.experts else None,
    )


def _multipliers(fields: Mapping[str, Any], family: ModelFamily, hidden: int, head_dim: int) -> Multipliers:
    match family.multipliers:
        case "none":
            return Multipliers(1.0, 1.0, head_dim**-0.5, 1.0)
        case "gemma":
            scores = number(fields, "query_pre_attn_scalar", 256.0, most=_MAX_SCALE) ** -0.5
            return Multipliers(hidden**0.5, 1.0, scores, 1.0, *_softcaps(fields, family))
        case "stated":
            names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
            embedding, residual, scores, logits = (number(fields, name, 1.0, 1 / _MAX_SCALE, _MAX_SCALE) for name in names)
            return Multipliers(embedding, residual, scores, 1.0 / logits)


def _softcaps(fields: Mapping[str, Any], family: ModelFamily) -> tuple[float, ...]:
    """Of scores and of logits; 0 where config.json says null."""
    names = ("attn_logit_softcapping", "final_logit_softcapping") if family.has_softcaps else ()
    return tuple(0.0 if fields.get(name) is None else number(fields, name, 0.0, 1 / _MAX_SCALE, _MAX_SCALE) for name in names)


def _layer_kinds(fields: Mapping[str, Any], family: ModelFamily) -> tuple[str, ...]:
    """The attention of each layer, as `layer_types` names it."""
    layers, listed = positive(fields, "num_hidden_layers", MAX_LAYERS), fields.get("layer_types")
    if family.windows in {"none", "everywhere"}:
        return (_FULL,) * layers
    if family.has_layers_without_rope:
        kinds = listed or [_FULL if turned else _SLIDING for turned in layers_with_rope(fields, layers)]
    elif family.windows == "optional":
        kinds = listed or _older_kinds(fields, layers)
    else:
        kinds = listed or _alternating_kinds(family.full_attention_every or positive(fields, "sliding_window_pattern", MAX_CONTEXT), layers)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (_SLIDING, _FULL) for kind in kinds):
        raise misstated("layer_types", kinds)
    return tuple(kinds)


def _older_kinds(fields: Mapping[str, Any], layers: int) -> list[str]:
    """Before transformers 4.53, layers from `max_window_layers` on had the window."""
    first = value_of(fields, "max_window_layers", 28)
    if not isinstance(first, int):
        raise misstated("max_window_layers", first)
    return [_SLIDING if layer >= first else _FULL for layer in range(layers)]


def _alternating_kinds(every: int, layers: int) -> list[str]:
    """All layers but every nth have the window."""
    return [_SLIDING if (layer + 1) % every else _FULL for layer in range(layers)]


def _windows(fields: Mapping[str, Any], family: ModelFamily, kinds: tuple[str, ...]) -> tuple[int | None, ...]:
    if family.windows == "everywhere":
        stated = fields.get("sliding_window")
        return (None if stated is None else positive(fields, "sliding_window", MAX_CONTEXT),) * len(kinds)
    used = flag(fields, "use_sliding_window") if family.windows == "optional" else _SLIDING in kinds
    window = positive({"sliding_window": 4096, **fields}, "sliding_window", MAX_CONTEXT) if used else None
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _check_token_ids(fields: Mapping[str, Any], name: str, vocabulary: int) -> None:
    """Refuses ids that the model does not have. A folder may state none, one or a list."""
    value = fields.get(name)
    for token in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
            raise misstated(name, value)


def _refuse_unsupported(fields: Mapping[str, Any], family: ModelFamily) -> None:
    name, computed = family.activation
    asked = {
        name: fields.get(name, computed) != computed,
        **{name: fields.get(name) not in (None, False) for name in family.not_computed},
    }
    faults = [f"{name} = {reprlib.repr(fields.get(name))}" for name, wrong in asked.items() if wrong]
    if faults:
        raise ModelError(f"config.json asks for {', '.join(faults)}, which is not computed; choose another model")
