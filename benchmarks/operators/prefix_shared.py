"""`prefix_shared_attention` and a training pass over groups that share their prompts, beside the same rows without sharing.

Attention alone stands beside "naive" (a masked softmax over padded rows), "padded" (torch's fused attention over them) and
"not shared" (itself, every prompt G times).
A training pass is the forward and backward pass of a decoder, its head left out: responses meet the head in either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from operators.rows import Comparison, Row, Work, compare
from torch import Tensor
from torch.nn import functional

from gradbus.formats.model_config import Biases, ModelConfig, Multipliers, Norms
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.rope_config import RopeConfig
from gradbus_kernels.models.decoder import Decoder
from gradbus_kernels.operators import PackedGroups, PrefixLayout, pack_groups, prefix_shared_attention

QWEN2 = {"hidden": 896, "intermediate": 4864, "heads": 14, "kv_heads": 2, "layers": 4}
"""Layers of Qwen2.5-0.5B."""
QWEN2_7B = {"hidden": 3584, "intermediate": 18_944, "heads": 28, "kv_heads": 4, "layers": 4}
GROUPS = {
    "cpu": ({"prompt": 512, "responses": [128] * 8}, {"prompt": 512, "responses": [83, 115, 139, 141, 170, 213, 273, 363]}),
    "cuda": ({"prompt": 2048, "responses": [512] * 8}, {"prompt": 2048, "responses": [214, 377, 480, 512, 533, 640, 901, 1311]}),
}
SMALL = ({"prompt": 80, "responses": [9, 20, 31]},)
HEADS, KV_HEADS, HEAD_DIM = 14, 2, 64
VOCABULARY = 1000


def measure(device: str, quick: bool) -> list[Row]:
    """A group of equal lengths and one of lognormal lengths: attention alone, then a training pass."""
    rows = []
    for group in SMALL if quick else GROUPS[device]:
        for dtype in ("float32", "bfloat16") if device == "cpu" else ("bfloat16",):
            rows += _attention(group, dtype, device)
    for group in SMALL if quick else GROUPS[device]:
        rows += _pass(group, device, quick)
    return rows


def _attention(group: dict[str, Any], dtype: str, device: str) -> list[Row]:
    comparison = Comparison(
        module="prefix_shared",
        operator="prefix_shared_attention, with backward",
        shape=_shape(group),
        dtype=dtype,
        case={**group, "what": "attention"},
        implementations=_implementations(group, "naive"),
        rounds=1,
        repeats=3,
    )
    return compare(comparison, device)


def _pass(group: dict[str, Any], device: str, quick: bool) -> list[Row]:
    model = {**QWEN2, "layers": 1} if quick else (QWEN2 if device == "cpu" else QWEN2_7B)
    comparison = Comparison(
        module="prefix_shared",
        operator="a training pass",
        shape=f"{_shape(group)} H={model['hidden']:,} layers={model['layers']}",
        dtype="float32" if device == "cpu" else "bfloat16",
        case={**group, **model, "what": "pass"},
        implementations=_implementations(group),
        rounds=1 if quick else 3,
        repeats=1 if device == "cpu" else 5,
    )
    rows = compare(comparison, device)
    tokens = {name: _packed(group["prompt"], group["responses"], name).layout.tokens for name in comparison.implementations}
    return [replace(row, note=_note(row, rows, tokens)) if not math.isnan(row.seconds) else row for row in rows]


def _note(row: Row, rows: list[Row], tokens: dict[str, int]) -> str:
    """The speed-up by sharing, and the greatest possible one."""
    faster = next(other.seconds for other in rows if other.implementation == "not shared") / row.seconds
    note = f"{tokens[row.implementation]:,} tokens"
    if row.implementation != "ours":
        return note
    return f"{note}, {faster:.2f} x as fast as not shared: {faster * tokens['ours'] / tokens['not shared']:.2f} of the ratio of tokens"


def _implementations(group: dict[str, Any], *more: str) -> tuple[str, ...]:
    """Rows of one length need no padding."""
    padded = () if len(set(group["responses"])) == 1 else ("padded",)
    return (*more, *padded, "not shared", "ours")


def _shape(group: dict[str, Any]) -> str:
    responses = group["responses"]
    lengths = f"{responses[0]}" if len(set(responses)) == 1 else f"{min(responses)}..{max(responses)}"
    return f"G={len(responses)} P={group['prompt']:,} R={lengths}"


def prepare(what: str, **case: Any) -> Work:
    """One call."""
    return {"attention": attention_work, "pass": pass_work}[what](**case)


def attention_work(implementation: str, prompt: int, responses: list[int], device: str, dtype: str) -> Work:
    """Forward and backward of one layer's attention. Each implementation has the inputs of its own layout."""
    torch.manual_seed(0)
    layout = attention_layout(implementation, prompt, responses)
    sizes = [(layout.tokens, count, HEAD_DIM) for count in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    *inputs, upstream = (torch.randn(size, device=device).to(getattr(torch, dtype)) for size in sizes)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    rows = len(responses)
    operators: dict[str, Callable[..., Tensor]] = {
        "naive": lambda *tensors: _of_rows(_naive, tensors, rows),
        "padded": lambda *tensors: _of_rows(_fused, tensors, rows),
    }
    operator = operators.get(implementation, lambda *tensors: prefix_shared_attention(*tensors, layout))

    def work() -> list[Tensor | None]:
        for tensor in inputs:
            tensor.grad = None
        output = operator(*inputs)
        output.backward(upstream)
        return [output.detach(), *(tensor.grad for tensor in inputs)]

    return work


def attention_layout(implementation: str, prompt: int, responses: list[int]) -> PrefixLayout:
    """Of the rows shared, not shared, or padded to the longest."""
    if implementation == "ours":
        return PrefixLayout.of_lengths([prompt, *responses], [None, *[0] * len(responses)])
    longest = max(responses)
    lengths = [prompt + (longest if implementation in {"naive", "padded"} else response) for response in responses]
    return PrefixLayout.of_lengths(lengths, [None] * len(responses))


def _of_rows(operator: Callable[..., Tensor], tensors: tuple[Tensor, ...], rows: int) -> Tensor:
    """On `[rows, heads, length, D]`."""
    output = operator(*(tensor.unflatten(0, (rows, -1)).transpose(1, 2) for tensor in tensors))
    return output.transpose(1, 2).flatten(0, 1)


def _naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    groups, length = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ key.transpose(2, 3) * query.shape[3] ** -0.5).masked_fill(hidden, float("-inf"))
    return scores.softmax(dim=-1) @ value


def _fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def pass_work(implementation: str, prompt: int, responses: list[int], device: str, dtype: str, **model: int) -> Work:
    """Forward and backward of the decoder; gradients are those of a sum over the hidden states that predict responses."""
    torch.manual_seed(0)
    decoder = Decoder(decoder_shape(**model)).to(device, getattr(torch, dtype))
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.02)
    batch = _packed(prompt, responses, implementation, device)

    def work() -> list[Tensor | None]:
        decoder.zero_grad(set_to_none=True)
        hidden = decoder(batch).index_select(0, batch.selected)
        hidden.float().square().sum().backward()
        return [hidden.detach(), *(parameter.grad for parameter in decoder.parameters())]

    return work


def _packed(prompt: int, responses: list[int], implementation: str, device: str = "cpu") -> PackedGroups:
    """Rows that do not share have prompts of one other token each; a response's last token is no input, so it has one more."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(VOCABULARY, (prompt,), generator=draw)
    prompts = [first.clone() for _ in responses]
    for row, ids in enumerate(prompts if implementation != "ours" else ()):
        ids[0] = row
    longest = max(responses)
    lengths = [longest if implementation == "padded" else response for response in responses]
    return pack_groups(prompts, [torch.randint(VOCABULARY, (length + 1,), generator=draw) for length in lengths], device)


def decoder_shape(hidden: int, intermediate: int, heads: int, kv_heads: int, layers: int) -> ModelConfig:
    """Of the Qwen2 family, its vocabulary small."""
    return ModelConfig(
        family=MODEL_FAMILIES["qwen2"], vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=intermediate, heads=heads,
        kv_heads=kv_heads, head_dim=hidden // heads, norms=Norms(1e-6, None), context_length=32_768, biases=Biases(True, False, False),
        tied=True, multipliers=Multipliers(1.0, 1.0, (hidden // heads) ** -0.5, 1.0),
        ropes=(RopeConfig(theta=1e6, kind="default", scaling={}),) * layers, windows=(None,) * layers,
    )  # fmt: skip
