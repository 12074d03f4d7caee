"""The speeds of the operators that a training step and a decode step spend their time in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpu_check.context import Context
from gpu_check.timing import seconds
from gradbus_kernels import operators as ops
from gradbus_kernels.operators.decoder_layer.norm import rms_norm
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, rotary
from gradbus_kernels.operators.decoder_layer.swiglu import swiglu

_WARMED = 5


def run(context: Context) -> None:
    """In bfloat16, as a model of 0.5 billion parameters asks for them; in dry mode in float32 and tiny."""
    dtype = torch.float32 if context.dry else torch.bfloat16
    _logprob(context, dtype)
    _loss(context, dtype)
    _attention(context, dtype)
    _layer(context, dtype)


def _logprob(context: Context, dtype: torch.dtype) -> None:
    rows, vocabulary = (8, 400) if context.dry else (8192, 151_936)
    logits = torch.randn(rows, vocabulary, device=context.device).to(dtype)
    ids = torch.randint(vocabulary, (rows,), device=context.device)
    took = seconds(lambda: ops.selected_logprob(logits, ids, entropy=True), context.device, _WARMED, queued=True)
    rate = logits.numel() * logits.element_size() / took
    context.speed("selected_logprob, forward", rate, "B/s", ("copy", context.ceilings["copy"]), 0.7)


def _loss(context: Context, dtype: torch.dtype) -> None:
    """Three products of tokens, vocabulary and width."""
    rows, vocabulary, width = (8, 400, 16) if context.dry else (8192, 151_936, 896)
    hidden, head = (torch.randn(count, width, device=context.device).to(dtype).requires_grad_() for count in (rows, vocabulary))
    ids = torch.randint(vocabulary, (rows,), device=context.device)
    parts = torch.randn(4, rows, device=context.device)
    tokens = ops.PolicyTokens(parts[0] - 9.0, parts[1], *(torch.full_like(parts[2:], 1.0 / rows)))

    def work() -> None:
        hidden.grad = head.grad = None
        ops.linear_grpo_loss(hidden, head, ids, tokens, ops.PolicySettings()).total.backward()

    rate = 6 * rows * vocabulary * width / seconds(work, context.device, _WARMED, queued=True)
    context.speed("linear_grpo_loss, with gradients", rate, "FLOP/s", _product(context), 0.5)


def _attention(context: Context, dtype: torch.dtype) -> None:
    """Groups of 8 responses that share a prompt: multiplications that the mask leaves, forward and backward."""
    prompt, response, groups = (8, 8, 1) if context.dry else (512, 192, 8)
    heads, key_heads, head_dim = (2, 2, 16) if context.dry else (14, 2, 64)
    lengths, parents = [], []
    for group in range(groups):
        lengths += [prompt, *[response] * 8]
        parents += [None, *[9 * group] * 8]
    layout = ops.PrefixLayout.of_lengths(lengths, parents)
    query, key, value = (
        torch.randn(layout.tokens, count, head_dim, device=context.device).to(dtype).requires_grad_()
        for count in (heads, key_heads, key_heads)
    )
    seen = groups * (prompt**2 / 2 + 8 * (response * prompt + response**2 / 2))

    def work() -> None:
        query.grad = key.grad = value.grad = None
        ops.prefix_shared_attention(query, key, value, layout).sum().backward()

    forward = seconds(lambda: ops.prefix_shared_attention(query, key, value, layout), context.device, _WARMED, queued=True)
    context.speed("prefix_shared_attention, forward", 4 * seen * heads * head_dim / forward, "FLOP/s", _product(context), 0.3)
    both = seconds(work, context.device, _WARMED, queued=True)
    context.speed("prefix_shared_attention, with backward", 14 * seen * heads * head_dim / both, "FLOP/s", _product(context), 0.25)


def _layer(context: Context, dtype: torch.dtype) -> None:
    """The bytes that the operations between a layer's products have to read and write, forward and backward."""
    tokens, width, inner, (heads, key_heads, size) = (8, 16, 24, (2, 1, 8)) if context.dry else (16_384, 896, 4_864, (14, 2, 64))
    turn = Rotation.of_angles(torch.rand(tokens, size // 2, device=context.device), 1.0, 1, dtype)

    def turned(qkv: Tensor) -> Tensor:
        return rotary(qkv, turn, key_heads).query

    made = [
        torch.randn(tokens, *shape, device=context.device).to(dtype).requires_grad_()
        for shape in ((width,), (2 * inner,), (heads + 2 * key_heads, size))
    ]
    weight = torch.ones(width, device=context.device, dtype=dtype, requires_grad=True)
    parts: list[tuple[str, Callable[[Tensor], Tensor], Tensor, float]] = [
        ("rms_norm", lambda x: rms_norm(x, weight, 1e-6), made[0], 5 * width),
        ("swiglu", swiglu, made[1], 8 * inner),
        ("rotary", turned, made[2], (4 * heads + 4 * key_heads + 2 * key_heads) * size),
    ]
    for name, operation, x, elements in parts:
        upstream = torch.ones_like(operation(x))

        def work(x: Tensor = x, operation: Callable[[Tensor], Tensor] = operation, upstream: Tensor = upstream) -> None:
            torch.autograd.grad(operation(x), x, upstream)

        rate = tokens * elements * dtype.itemsize / seconds(work, context.device, _WARMED, queued=True)
        context.speed(f"{name}, forward and backward", rate, "B/s", ("copy", context.ceilings["copy"]), 0.5)


def _product(context: Context) -> tuple[str, float]:
    name = "gemm_fp32" if context.dry else "gemm_bf16"
    return name, context.ceilings[name]
