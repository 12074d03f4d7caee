"""The engine's tensors: fused for speed, with views named as in a Hugging Face state dict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gradbus.errors import ModelError, SettingsError, first_line
from gradbus.formats.frozen import is_frozen
from gradbus.formats.model_config import ModelConfig
from gradbus.formats.safetensors import check_tensors, refuse_tensors
from gradbus_kernels.weights.digest import weights_digest


class LayerWeights:
    """One decoder layer, computed in four products: q, k and v are one matrix, gate and up another.

    Matrices are `[in, out]`. `qk_norms` has the weights of the norms of queries and of keys, `[2, head_dim]`; `[0, head_dim]` without them.
    """

    def __init__(self, config: ModelConfig, like: Tensor) -> None:
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.input_norm = like.new_empty(config.hidden_size)
        self.qkv = _matrix(like, config.hidden_size, query + 2 * key)
        self.qkv_bias = like.new_empty(query + 2 * key) if config.qkv_bias else None
        self.qk_norms = like.new_empty(2 if config.family.qk_norm else 0, config.head_dim)
        self.out = _matrix(like, query, config.hidden_size)
        self.post_norm = like.new_empty(config.hidden_size)
        self.gate_up = _matrix(like, config.hidden_size, 2 * config.intermediate_size)
        self.down = _matrix(like, config.intermediate_size, config.hidden_size)
        self._qkv_sizes = [query, key, key]
        self._half_head = config.head_dim // 2

    def named(self, prefix: str) -> dict[str, Tensor]:
        """Views of this layer's tensors by state-dict name; views of queries and keys are `[heads, 2, head_dim / 2, ...]`."""
        names = {
            f"{prefix}.input_layernorm.weight": self.input_norm,
            f"{prefix}.post_attention_layernorm.weight": self.post_norm,
            f"{prefix}.self_attn.o_proj.weight": self.out.t(),
            f"{prefix}.mlp.down_proj.weight": self.down.t(),
        }
        fused = {"weight": self.qkv.t()} | ({} if self.qkv_bias is None else {"bias": self.qkv_bias})
        for kind, tensor in fused.items():
            query, key, value = torch.split(tensor, self._qkv_sizes)
            names[f"{prefix}.self_attn.q_proj.{kind}"] = self._halves(query)
            names[f"{prefix}.self_attn.k_proj.{kind}"] = self._halves(key)
            names[f"{prefix}.self_attn.v_proj.{kind}"] = value
        for name, norm in zip(("q_norm", "k_norm"), self.qk_norms, strict=False):
            names[f"{prefix}.self_attn.{name}.weight"] = self._halves(norm)
        for name, view in zip(("gate_proj", "up_proj"), self.gate_up.t().chunk(2), strict=True):
            names[f"{prefix}.mlp.{name}.weight"] = view
        return names

    def _halves(self, rows: Tensor) -> Tensor:
        """A view of rows stored as interleaved pairs, for `rotate`, in a state dict's order: first halves, then second halves."""
        return rows.view(-1, self._half_head, 2, *rows.shape[1:]).transpose(1, 2)


class ModelWeights:
    """All tensors of a model, allocated once and overwritten by every load."""

    def __init__(self, config: ModelConfig, like: Tensor) -> None:
        self.embedding = like.new_empty(config.vocab_size, config.hidden_size)
        self.layers = [LayerWeights(config, like) for _ in range(config.layers)]
        self.norm = like.new_empty(config.hidden_size)
        self.head = self.embedding if config.tied else like.new_empty(config.vocab_size, config.hidden_size)
        self.named: dict[str, Tensor] = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for number, layer in enumerate(self.layers):
            self.named |= layer.named(f"model.layers.{number}")
        if not config.tied:
            self.named["lm_head.weight"] = self.head
        self.shapes = {name: _as_stored(view).shape for name, view in self.named.items()}
        """Shapes in a state dict, by name."""
        self._dtypes = {name: view.dtype for name, view in self.named.items()}

    def replace(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrite every tensor; ignores names that the model does not have. Raises ModelError when a tensor is missing."""
        missing = set(self.named)
        for name, tensor in tensors:
            if name in self.named:
                view = self.named[name]
                view.copy_(tensor.view(view.shape))
                self._dtypes[name] = tensor.dtype
                missing.discard(name)
        refuse_tensors(missing, "are missing from the weights")

    def digest(self) -> str:
        """Digest of the engine's tensors, not of the files, in the dtypes of the files."""
        return weights_digest({name: _narrowed(_as_stored(view), self._dtypes[name]) for name, view in self.named.items()})


def _matrix(like: Tensor, rows: int, columns: int) -> Tensor:
    """An empty `[rows, columns]`, in memory as small products are fastest: in float32 by rows, in bfloat16 by columns."""
    return like.new_empty(columns, rows).t() if like.dtype == torch.bfloat16 else like.new_empty(rows, columns)


def _as_stored(view: Tensor) -> Tensor:
    """The view with its shape in a state dict."""
    return view.flatten(0, 2) if view.dim() > 2 else view


def _narrowed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in `dtype` if that loses nothing. Otherwise these are not the stored weights, and the digest must differ."""
    if tensor.dtype == dtype:
        return tensor
    narrowed = tensor.to(dtype)
    return narrowed if torch.equal(narrowed.to(tensor.dtype), tensor) else tensor


def read_tensors(files: Sequence[Path], shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The tensors of `files` that are not frozen, memory-mapped. Raises ModelError unless they have exactly these names and shapes."""
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = {name: tensor for name, tensor in _load(file).items() if not is_frozen(name)}
        refuse_tensors(found.keys() & tensors.keys(), "are in two of the weight files")
        found |= tensors
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
    try:
        return torch.empty(0, device=device, dtype=dtype)
    except (AssertionError, RuntimeError) as error:  # AssertionError: torch was built without such devices
        raise SettingsError(f"torch cannot use device {device} ({first_line(error)}); set GRADBUS_DEVICE to one that is here") from error
