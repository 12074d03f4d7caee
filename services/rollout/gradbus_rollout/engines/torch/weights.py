"""The engine's tensors: fused for speed, with views named as in a Hugging Face state dict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gradbus.errors import ModelError, first_line
from gradbus.formats.expert_config import SHARED, ExpertsConfig, fused_shapes
from gradbus.formats.frozen import frozen_names
from gradbus.formats.model_config import ModelConfig, redundant_shapes, tensor_shapes
from gradbus.formats.safetensors import check_tensors, refuse_tensors
from gradbus_kernels.models.device_memory import device_in_use
from gradbus_kernels.models.files import are_equal
from gradbus_kernels.models.mixture.routing import Routing, read_corrections
from gradbus_kernels.operators.batch_invariant.matmul import WIDTH
from gradbus_kernels.weights.digest import digest_in_order
from gradbus_kernels.weights.host_buffers import on_host
from gradbus_kernels.weights.piece_reader import PieceReader
from gradbus_kernels.weights.piece_sender import PieceSender

Views = tuple[Tensor, ...]
"""Views that stacked, with the first three dimensions of one with more than two flattened, are a tensor of a state dict.

One with more than two dimensions, of the matrices of all experts, is its rows.
"""
_FUSED_UNIT: Final = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")


class UnitWeights(NamedTuple):
    """A gated linear unit, computed in two products: gate and up are one matrix. Both are `[in, out]`."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @classmethod
    def empty(cls, like: Tensor, hidden: int, width: int) -> UnitWeights:
        """One without biases."""
        return cls(_matrix(like, hidden, 2 * width), _matrix(like, width, hidden))

    def named(self, gate: str, up: str, down: str) -> dict[str, Views]:
        """Views of the three matrices by the names of their layers in a state dict."""
        gates, ups = self.gate_up.t().chunk(2)
        return {gate: (gates,), up: (ups,), down: (self.down.t(),)}


class ExpertWeights:
    """The experts of a decoder layer and their router, `[in, out]`; its columns past the experts are zero."""

    def __init__(self, experts: ExpertsConfig, hidden: int, like: Tensor) -> None:
        self.config = experts
        self.routing = Routing(experts)
        # A BLAS may sum a row of a narrow product in an order that depends on its place.
        columns = -(-experts.count // WIDTH) * WIDTH
        of_router = like.float() if self.routing.in_float32 else like
        self.router = _matrix(of_router, hidden, columns).zero_()
        self.router_bias = of_router.new_zeros(columns) if experts.family.fused else None
        self.shared = UnitWeights.empty(like, hidden, experts.shared_width) if experts.shared_width else None
        self._fused = {name: like.new_empty(shape) for name, shape in fused_shapes(experts, hidden).items()} if experts.family.fused else {}
        self.units = (
            [UnitWeights(*parts) for parts in zip(*(self._fused[name] for name in _FUSED_UNIT), strict=True)]
            if experts.family.fused
            else [UnitWeights.empty(like, hidden, experts.width) for _ in range(experts.count)]
        )

    def named(self) -> dict[str, Views]:
        """Views of all tensors by their names in a decoder layer."""
        family = self.config.family
        names: dict[str, Views] = {f"{family.router}.weight": (self.router.t()[: self.config.count],)}
        if self.router_bias is not None:
            names[f"{family.router}.bias"] = (self.router_bias[: self.config.count],)
            names |= {f"experts.{name}": (_by_rows(whole),) for name, whole in self._fused.items()}
        owners = {} if family.fused else {f"experts.{expert}": unit for expert, unit in enumerate(self.units)}
        for owner, unit in (owners | ({SHARED: self.shared} if self.shared else {})).items():
            names |= {f"{owner}.{name}.weight": views for name, views in unit.named(*family.matrices).items()}
        return {f"{family.block}.{name}": views for name, views in names.items()}


class LayerWeights:
    """One decoder layer, computed in four products: q, k and v are one matrix, gate and up another; or with `experts`.

    Matrices are `[in, out]`. `norms` has the weights of the layer's norms by their places. `qk_norms` has those of the norms of queries
    and of keys, and is empty without them.
    """

    def __init__(self, config: ModelConfig, like: Tensor, number: int) -> None:
        self._config = config
        rope = config.ropes[number]
        self._turned = rope.turned(config.head_dim) if rope else config.head_dim
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.norms = {place: like.new_empty(config.hidden_size) for _, place in config.family.norms}
        self.qkv = _matrix(like, config.hidden_size, query + 2 * key)
        self.qkv_bias = like.new_empty(query + 2 * key) if config.biases.qkv else None
        self.qk_norms = [like.new_empty(size) for size in config.qk_norm_sizes if size]
        self.out = _matrix(like, query, config.hidden_size)
        self.out_bias = like.new_empty(config.hidden_size) if config.biases.out else None
        self.sinks = like.new_empty(config.heads) if config.family.has_sinks else None
        experts = config.experts_of(number)
        self.experts = ExpertWeights(experts, config.hidden_size, like) if experts else None
        self.unit = UnitWeights.empty(like, config.hidden_size, 0 if self.experts else config.intermediate_size)
        self._qkv_sizes = [query, key, key]

    def named(self, prefix: str) -> dict[str, Views]:
        """Views of this layer's tensors by state-dict name; those of queries and keys may be `[heads, 2, head_dim / 2, ...]`."""
        names: dict[str, Views] = {f"{name}.weight": (self.norms[place],) for name, place in self._config.family.norms}
        names |= self._named_qkv("weight", self.qkv.t())
        if self.qkv_bias is not None:
            names |= self._named_qkv("bias", self.qkv_bias)
        for name, norm in zip(("q_norm", "k_norm"), self.qk_norms, strict=False):
            names[f"self_attn.{name}.weight"] = self._stored_order(norm)
        names["self_attn.o_proj.weight"] = (self.out.t(),)
        if self.out_bias is not None:
            names["self_attn.o_proj.bias"] = (self.out_bias,)
        if self.experts is None:
            unit = self.unit.named("gate_proj", "up_proj", "down_proj")
            unit["gate_up_proj"] = (*unit["gate_proj"], *unit["up_proj"])
            names |= {f"mlp.{name}.weight": views for name, views in unit.items()}
        stored = {*self._config.family.linear_layers, "q_norm", "k_norm", *(name for name, _ in self._config.family.norms)}
        names = {name: views for name, views in names.items() if name.split(".")[-2] in stored}
        names |= self.experts.named() if self.experts else {}
        names |= {} if self.sinks is None else {"self_attn.sinks": (self.sinks,)}
        return {f"{prefix}.{name}": views for name, views in names.items()}

    def _named_qkv(self, kind: str, fused: Tensor) -> dict[str, Views]:
        query, key, value = torch.split(fused, self._qkv_sizes)
        parts = self._stored_order(query), self._stored_order(key), (value,)
        names = {f"self_attn.{name}_proj.{kind}": part for name, part in zip("qkv", parts, strict=True)}
        return {**names, f"self_attn.qkv_proj.{kind}": tuple(chain(*parts))}

    def _stored_order(self, rows: Tensor) -> Views:
        """Views of rows, which are kept as neighbouring pairs for `rotate`, in a state dict's order: often first halves, then second.

        Where a part of each head is turned, the first halves of that part, its second halves, and the rest as it is, head by head.
        """
        if self._config.family.rope_pairs == "neighbours":
            return (rows,)
        if self._turned == self._config.head_dim:
            return (self._halves_first(rows, self._turned),)
        heads = torch.split(rows, self._config.head_dim)
        return tuple(chain(*((self._halves_first(head[: self._turned], self._turned), head[self._turned :]) for head in heads)))

    def _halves_first(self, rows: Tensor, size: int) -> Tensor:
        return rows.view(-1, size // 2, 2, *rows.shape[1:]).transpose(1, 2)


class ModelWeights:
    """All tensors of a model, allocated once and overwritten by every load."""

    def __init__(self, config: ModelConfig, like: Tensor, rounded_to: torch.dtype | None = None) -> None:
        """Weights are rounded to `rounded_to`, by default the dtype of `like`, and kept in the latter."""
        self._rounded_to = rounded_to or like.dtype
        self.embedding = like.new_empty(config.vocab_size, config.hidden_size)
        self.layers = [LayerWeights(config, like, number) for number in range(config.layers)]
        self.norm = like.new_empty(config.hidden_size)
        self.head = self.embedding if config.tied else like.new_empty(config.vocab_size, config.hidden_size)
        self.head_columns = self.head.t()
        """`[hidden, vocab]`"""
        self.named: dict[str, Views] = {"model.embed_tokens.weight": (self.embedding,), "model.norm.weight": (self.norm,)}
        for number, layer in enumerate(self.layers):
            self.named |= layer.named(f"model.layers.{number}")
        if not config.tied:
            self.named["lm_head.weight"] = (self.head,)
        self.named = {config.family.stored_name(name): views for name, views in self.named.items()}
        shapes = tensor_shapes(config)
        self.shapes = {name: torch.Size(shapes[name]) for name in self.named}
        """Shapes in a state dict, by name."""
        head, embedding = config.family.head, config.family.embedding
        self.redundant = {name: embedding if name == head else None for name in redundant_shapes(config)}
        """Names of tensors that the model's folder may have besides, and no version has: a tied head, to the embedding that it must equal,
        and frequencies, which nothing reads, to None."""
        self._dtypes = dict.fromkeys(self.named, like.dtype)
        self._sender, self._reader = PieceSender(), PieceReader()

    def replace(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrite every tensor; ignores names that the model does not have. Raises ModelError when a tensor is missing."""
        missing = set(self.named)
        for name, tensor in tensors:
            if name in self.named:
                self._dtypes[name] = tensor.dtype
                self._bring(name, tensor)
                missing.discard(name)
        self._sender.finish()
        refuse_tensors(missing, "are missing from the weights")

    def _bring(self, name: str, tensor: Tensor) -> None:
        """Assigns a tensor of the CPU: there at once, on a GPU by a contiguous one there, the view itself where it is like that."""
        views = self.named[name]
        if on_host(views[0]):
            self._assign(name, tensor)
        elif len(views) == 1 and views[0].is_contiguous() and tensor.dtype == views[0].dtype == self._rounded_to:
            self._sender.send(tensor, views[0], lambda: None)
        else:
            there = torch.empty_like(tensor, device=views[0].device, memory_format=torch.contiguous_format)
            self._sender.send(tensor, there, lambda: self._assign(name, there))

    def _assign(self, name: str, tensor: Tensor) -> None:
        views = self.named[name]
        rounded = tensor if self._rounded_to == views[0].dtype else tensor.to(self._rounded_to)
        for view, part in zip(views, torch.split(_by_rows(rounded), [_rows(view) for view in views]), strict=True):
            view.copy_(part.view(view.shape))

    def correct(self, folder: Path) -> None:
        """Gives routers what they add to their scores. Raises ModelError."""
        experts = {f"model.layers.{number}": layer.experts for number, layer in enumerate(self.layers) if layer.experts}
        routings = {f"{layer}.{own.config.family.block}": own.routing for layer, own in experts.items()}
        read_corrections(folder, routings, self.embedding.device)

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor, or a view of it."""
        return [view for views in self.named.values() for view in views]

    def digest(self) -> str:
        """Digest of the engine's tensors, not of the files, in the dtypes of the files."""
        stored = ((name, _as_stored(self.named[name]).view(self.shapes[name])) for name in sorted(self.named))
        return digest_in_order(((name, _narrowed(tensor, self._dtypes[name])) for name, tensor in stored), self._reader)


def _matrix(like: Tensor, rows: int, columns: int) -> Tensor:
    """An empty `[rows, columns]`, in memory as small products are fastest: in float32 by rows, in bfloat16 by columns."""
    return like.new_empty(columns, rows).t() if like.dtype == torch.bfloat16 else like.new_empty(rows, columns)


def _as_stored(views: Views) -> Tensor:
    """The tensor of a state dict."""
    parts = [view.flatten(0, 2) if view.dim() > 2 else view for view in views]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _by_rows(tensor: Tensor) -> Tensor:
    """A tensor of a state dict as its views have it: matrices of all experts below each other."""
    return tensor.flatten(0, -2) if tensor.dim() > 2 else tensor


def _rows(view: Tensor) -> int:
    """Rows of the view in a state dict."""
    return math.prod(view.shape[:3]) if view.dim() > 2 else len(view)


def _narrowed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in `dtype` if that loses nothing. Otherwise these are not the stored weights, and the digest must differ."""
    if tensor.dtype == dtype:
        return tensor
    narrowed = tensor.to(dtype)
    return narrowed if torch.equal(narrowed.to(tensor.dtype), tensor) else tensor


def read_tensors(
    files: Sequence[Path], shapes: Mapping[str, Sequence[int]], redundant: Mapping[str, str | None] = MappingProxyType({})
) -> dict[str, Tensor]:
    """The tensors of `files` that are not frozen, memory-mapped. Raises ModelError unless they have exactly these names and shapes.

    `redundant`: see `ModelWeights.redundant`.
    """
    found: dict[str, Tensor] = {}
    for file in files:
        loaded = _load(file)
        tensors = {name: loaded[name] for name in loaded.keys() - frozen_names(loaded)}
        refuse_tensors(found.keys() & tensors.keys(), "are in two of the weight files")
        found |= tensors
    for name in found.keys() & redundant.keys():
        same = redundant[name]
        if same is None or (
            same in found and are_equal(found[name], found[same], torch.promote_types(found[name].dtype, found[same].dtype))
        ):
            del found[name]
    check_tensors(found, shapes)
    return found


def _load(file: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise ModelError(f"cannot read the weights in {file.name} ({reason}); fetch them again") from error
    return tensors


def empty_like(device: str, dtype: torch.dtype) -> Tensor:
    """An empty tensor that carries device and dtype for the others. Raises SettingsError if torch cannot use the device."""
    with device_in_use(device):
        return torch.empty(0, device=device, dtype=dtype)
