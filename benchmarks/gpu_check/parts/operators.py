"""Part 1: every Triton kernel against a float64 reference, over the shapes of real models, twice for equal bits.

An operator's error, relative to the norm of the exact result, is at most twice that of plain torch in the same dtype plus 1e-5. Memory is
filled with NaN before the second call, so an element that no kernel writes is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor

from gpu_check.context import Context
from gpu_check.parts import cached_attention, operator_speeds
from gradbus_kernels import operators as ops
from gradbus_kernels.operators.batch_invariant.layers import invariant_swiglu_reference
from gradbus_kernels.operators.decoder_layer.head_norm import HeadNorms, normed_rotary
from gradbus_kernels.operators.decoder_layer.norm import rms_norm, rms_norm_in_float32, rms_norm_reference
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, Turned, rotary, rotary_reference
from gradbus_kernels.operators.decoder_layer.swiglu import geglu, geglu_reference, swiglu, swiglu_reference

_TOLERANCE: Final = 1e-5
_VOCABULARY: Final = 151_936
_ATTENTION: Final = ((64, 14, 2, None), (80, 8, 8, None), (128, 16, 4, 200), (256, 8, 1, None))
"""Head dimension, query heads, key heads and window; each compiles three kernels, which takes most of the part's time."""
_POISON: Final = 1 << 28
_BOTH: Final = (torch.bfloat16, torch.float32)
Compute = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Case:
    """An operator on given inputs."""

    name: str
    inputs: Sequence[Tensor]
    """Float32; both functions get them in the dtype under test."""
    ours: Compute
    plain: Compute
    dtypes: Sequence[torch.dtype] = (torch.bfloat16,)


def run(context: Context) -> None:
    """Errors and bits of all cases, draws, attention over a cache, batch invariance, then speeds."""
    implementation = "triton" if find_spec("triton") is not None else "cpu"
    with ops.using(implementation) if context.dry else nullcontext():
        for case in _cases(context):
            for dtype in _BOTH[1:] if context.dry else case.dtypes:
                _check(context, case, dtype)
        _check_draws(context)
        cached_attention.run(context, partial(_poison, context))
        context.holds(f"all kernels ran by {implementation}", {ran.implementation for ran in ops.provenance().values()} <= {implementation})
    _check_invariance(context)  # in dry mode by the CPU's implementation: the products of Triton's interpreter are numpy's
    operator_speeds.run(context)


def _check(context: Context, case: Case, dtype: torch.dtype) -> None:
    inputs = [tensor.to(dtype) for tensor in case.inputs]
    first = _computed(case.ours, inputs)
    _poison(context)
    again = _computed(case.ours, inputs)
    with ops.using("reference"):
        exact = _computed(case.plain, [tensor.double() for tensor in inputs])
        plain = _computed(case.plain, inputs)
    name = f"{case.name}, {str(dtype).removeprefix('torch.')}"
    worst = max(zip(first, plain, exact, strict=True), key=lambda found: _error(found[0], found[2]) - 2 * _error(found[1], found[2]))
    context.correct(f"{name}: error", _error(worst[0], worst[2]), 2 * _error(worst[1], worst[2]) + _TOLERANCE)
    context.holds(f"{name}: the same bits twice", all(map(torch.equal, first, again)))


def _computed(compute: Compute, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, and the gradients of their sum weighted by fixed random numbers."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    outputs = compute(*leaves)
    draw = torch.Generator(outputs[0].device).manual_seed(1)
    loss = sum((out.double() * torch.randn(out.shape, generator=draw, device=out.device).double()).sum() for out in outputs)
    return [*(out.detach() for out in outputs), *torch.autograd.grad(loss, leaves)]  # type: ignore[arg-type]


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))


def _poison(context: Context) -> None:
    """Leaves NaN in the memory that the next tensors are likely to get."""
    size = 1 << 16 if context.dry else _POISON
    held = [torch.full((size >> shift,), float("nan"), device=context.device) for shift in range(12)]
    del held


def _cases(context: Context) -> Iterator[Case]:
    rows, width, vocabulary = (6, 32, 200) if context.dry else (300, 896, _VOCABULARY)
    made = partial(_random, context)
    ids = torch.randint(vocabulary, (rows,), device=context.device, generator=torch.Generator(context.device).manual_seed(2))
    hidden, head = made(rows, width), made(vocabulary, width, scale=3.0 / width**0.5)
    yield Case(
        "selected_logprob",
        [made(rows, vocabulary, scale=3.0)],
        lambda logits: _present(ops.selected_logprob(logits, ids, 0.7, entropy=True)),
        lambda logits: _present(ops.selected_logprob_reference(logits, ids, 0.7, entropy=True)),
        _BOTH,
    )
    yield Case(
        "linear_logprob",
        [hidden, head],
        lambda *given: _present(ops.linear_logprob(*given, ids, temperature=0.7)),
        lambda *given: _present(ops.linear_logprob_reference(*given, ids, temperature=0.7)),
    )
    tokens, settings = _policy_tokens(context, rows), ops.PolicySettings(entropy=0.01)
    yield Case(
        "linear_grpo_loss",
        [hidden, head],
        lambda *given: [ops.linear_grpo_loss(*given, ids, tokens(given[0].dtype), settings).total],
        lambda *given: [ops.linear_grpo_loss_reference(*given, ids, tokens(given[0].dtype), settings).total],
        _BOTH,
    )
    for head_dim, heads, key_heads, window in _ATTENTION[2:3] if context.dry else _ATTENTION:
        yield _attention(context, head_dim, heads, key_heads, window)
    yield from _bounded_cases(context)
    yield from _layer_cases(context)
    yield from _invariant_cases(context)


def _attention(context: Context, head_dim: int, heads: int, key_heads: int, window: int | None) -> Case:
    if context.dry:
        head_dim, heads, key_heads = 20, 4, 2
    lengths = [9, 5, 3, 7] if context.dry else [300, 920, 77, 1, 333]  # the prompt's keys have enough queries for several programs
    layout = ops.PrefixLayout.of_lengths(lengths, [None, 0, 0, None, None][: len(lengths)])
    window = 6 if context.dry else window
    inputs = [_random(context, layout.tokens, count, head_dim) for count in (heads, key_heads, key_heads)]
    return Case(
        f"prefix_shared_attention, D {head_dim}, heads {heads}/{key_heads}, window {window}",
        inputs,
        lambda *given: [ops.prefix_shared_attention(*given, layout, window=window)],
        lambda *given: [ops.prefix_shared_attention_reference(*given, layout, window=window)],
        _BOTH if head_dim in {20, 64} else _BOTH[:1],
    )


def _bounded_cases(context: Context) -> Iterator[Case]:
    """Attention and head as Gemma 2 bounds them, and attention with a sink in each head, as gpt-oss has it."""
    rows, width, vocabulary, (heads, key_heads, size) = (6, 32, 200, (4, 2, 20)) if context.dry else (300, 896, 32_000, (8, 2, 64))
    made = partial(_random, context)
    ids = torch.randint(vocabulary, (rows,), device=context.device, generator=torch.Generator(context.device).manual_seed(3))
    lengths = [9, 5, 3] if context.dry else [300, 320, 77]
    layout = ops.PrefixLayout.of_lengths(lengths, [None, 0, 0])
    tokens = [made(layout.tokens, count, size) for count in (heads, key_heads, key_heads)]
    scores, logits = ops.Softcapped(size**-0.5, 5.0), ops.Softcapped(0.7, 5.0)
    yield Case(
        "prefix_shared_attention with a softcap",
        tokens,
        lambda *given: [ops.prefix_shared_attention(*given, layout, scores)],
        lambda *given: [ops.prefix_shared_attention_reference(*given, layout, scores)],
    )
    yield Case(
        "prefix_shared_attention with sinks",
        [*tokens, made(heads)],
        lambda *given: [ops.prefix_shared_attention_with_sinks(*given, layout, window=6)],
        lambda *given: [ops.prefix_shared_attention_with_sinks_reference(*given, layout, window=6)],
    )
    yield Case(
        "linear_logprob with a softcap",
        [made(rows, width), made(vocabulary, width, scale=3.0 / width**0.5)],
        lambda *given: _present(ops.linear_logprob(*given, ids, temperature=logits)),
        lambda *given: _present(ops.linear_logprob_reference(*given, ids, temperature=logits)),
    )


def _layer_cases(context: Context) -> Iterator[Case]:
    """More rows than one program's share of the sums of a norm, and sizes that fill no block."""
    rows, width, (heads, key_heads, size) = (9, 40, (3, 1, 12)) if context.dry else (3001, 1000, (14, 2, 80))
    made = partial(_random, context)
    yield Case(
        "rms_norm",
        [made(rows, width), made(width)],
        lambda *given: [rms_norm(*given, 1e-6)],
        lambda *given: [rms_norm_reference(*given, 1e-6)],
        _BOTH,
    )
    yield Case(
        "rms_norm of heads",
        [made(rows, heads, 64), made(64)],
        lambda *given: [rms_norm(*given, 1e-6)],
        lambda *given: [rms_norm_reference(*given, 1e-6)],
    )
    yield Case("swiglu", [made(rows, 2 * width)], lambda both: [swiglu(both)], lambda both: [swiglu_reference(both)], _BOTH)
    angles = made(rows, size // 2, scale=3.0)

    def rotation(qkv: Tensor) -> Rotation:
        return Rotation.of_angles(angles, 1.0, heads + key_heads, qkv.dtype)

    def turned(compute: Callable[[Tensor, Rotation, int], Turned]) -> Callable[[Tensor], Turned]:
        return lambda qkv: compute(qkv, rotation(qkv), key_heads)

    yield Case("rotary", [made(rows, heads + 2 * key_heads, size)], turned(rotary), turned(rotary_reference), _BOTH)
    yield Case("geglu", [made(rows, 2 * width)], lambda both: [geglu(both)], lambda both: [geglu_reference(both)], _BOTH)
    for offset in (0.0, 1.0):
        yield Case(
            f"rms_norm_in_float32, offset {offset:.0f}",
            [made(rows, width), made(width)],
            lambda *given, offset=offset: [rms_norm_in_float32(*given, 1e-6, offset)],
            lambda *given, offset=offset: [_norm_in_float32(*given, offset)],
        )

    def normed_and_turned(qkv: Tensor, query: Tensor, key: Tensor) -> Turned:
        parts = qkv.split_with_sizes([heads, key_heads, key_heads], dim=1)
        return turned(rotary_reference)(
            torch.cat((rms_norm_reference(parts[0], query, 1e-6), rms_norm_reference(parts[1], key, 1e-6), parts[2]), dim=1)
        )

    yield Case(
        "normed_rotary",
        [made(rows, heads + 2 * key_heads, size), made(size), made(size)],
        lambda qkv, query, key: normed_rotary(qkv, HeadNorms(query, key, 1e-6), rotation(qkv), key_heads),
        normed_and_turned,
    )


def _invariant_cases(context: Context) -> Iterator[Case]:
    rows, inner, columns = (5, 24, 40) if context.dry else (200, 896, 1152)
    heads, length, size = (2, 40, 16) if context.dry else (14, 300, 64)
    made, device = partial(_random, context), context.device
    ids = torch.randint(columns, (rows,), device=device)
    yield Case(
        "invariant_matmul",
        [made(rows, inner), made(inner, columns)],
        lambda *given: [ops.invariant_matmul(*given)],
        lambda *given: [ops.invariant_matmul_reference(*given)],
        _BOTH,
    )
    yield Case(
        "invariant_attention",
        [made(1, count, length, size) for count in (heads, heads // 2, heads // 2)],
        lambda *given: [ops.invariant_attention(*given, size**-0.5)],
        lambda *given: [ops.invariant_attention_reference(*given, size**-0.5)],
    )
    yield Case(
        "invariant_embedding",
        [made(columns, inner)],
        lambda weight: [ops.invariant_embedding(ids, weight)],
        lambda weight: [ops.invariant_embedding_reference(ids, weight)],
    )
    yield Case(
        "invariant_rms_norm",
        [made(rows, inner), made(inner)],
        lambda *given: [ops.invariant_rms_norm(*given, 1e-6)],
        lambda *given: [rms_norm_reference(*given, 1e-6)],
    )
    yield Case(
        "invariant_swiglu",
        [made(rows, 2 * inner)],
        lambda both: [ops.invariant_swiglu(both)],
        lambda both: [invariant_swiglu_reference(both)],
    )
    yield Case(
        "invariant_logprob",
        [made(rows, inner), made(columns, inner, scale=3.0 / inner**0.5)],
        lambda *given: ops.invariant_logprob(*given, ids),
        lambda *given: ops.invariant_logprob_reference(*given, ids),
    )


def _norm_in_float32(x: Tensor, weight: Tensor, offset: float) -> Tensor:
    """As Gemma's norms, with offset 1, and OLMo's: rounded once."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return rms_norm_reference(wide, offset + weight.to(wide.dtype), 1e-6).to(x.dtype)


def _check_draws(context: Context) -> None:
    """Draws without a cut-off take the token in whose interval of cumulative probability the random number lies, up to rounding.

    With one, the support is small, and all but a few of the tokens are the reference's.
    """
    rows, draws, vocabulary, width = (2, 8, 300, 16) if context.dry else (64, 64, _VOCABULARY, 896)
    made, plain, cut = partial(_random, context), ops.SamplingParams(0.8), ops.SamplingParams(0.8, top_k=50, top_p=0.9)
    seeds = torch.arange(rows * draws, device=context.device).view(rows, draws)
    hidden, head = made(rows, width), made(vocabulary, width, scale=3.0 / width**0.5)
    logits = made(rows, vocabulary, scale=3.0)
    for name, draw, exact in (
        ("sample", partial(ops.sample, logits), logits.double()),
        ("linear_sample", partial(ops.linear_sample, hidden, head), hidden.double() @ head.double().T),
    ):
        found, again, wanted = draw(seeds, seeds, plain), draw(seeds, seeds, plain), draw(seeds, seeds, cut)
        context.correct(f"{name}: distance of a random number from its token's interval", _outside(found.ids, exact, seeds), 2e-5)
        table = (exact / 0.8).log_softmax(-1)
        apart = (found.logprobs.double() - table.gather(1, found.ids)).abs().max()
        context.correct(f"{name}: log-probability", float(apart), 2e-4, "nats")
        context.holds(f"{name}: the same bits twice", all(map(torch.equal, found, again)))
        of_reference = ops.sample_reference(exact, seeds, seeds, cut).ids
        others = (wanted.ids != of_reference).double().mean()
        context.correct(f"{name}, top-k and top-p: share of other tokens", float(others), 0.0 if context.dry else 0.01)


def _outside(ids: Tensor, logits: Tensor, seeds: Tensor) -> float:
    """The largest distance of a row's random numbers from the intervals of the tokens `ids` at temperature 0.8."""
    probabilities = (logits / 0.8).softmax(-1)
    upper = probabilities.cumsum(-1).gather(1, ids)
    lower, uniform = upper - probabilities.gather(1, ids), ops.counter_uniform(seeds, seeds)
    return float(torch.maximum(lower - uniform, uniform - upper).max().clamp_min(0.0))


def _check_invariance(context: Context) -> None:
    """A row's bits depend neither on the other rows nor on their number."""
    rows, inner, columns, dtype = (70, 24, 40, torch.float32) if context.dry else (300, 896, 1152, torch.bfloat16)
    x, weight = (_random(context, *shape).to(dtype) for shape in ((rows, inner), (inner, columns)))
    whole = ops.invariant_matmul(x, weight)
    parts = [ops.invariant_matmul(x[rows - count :], weight) for count in (1, 33, 64)]
    context.holds("invariant_matmul: a row's bits at any batch size", all(torch.equal(part, whole[-len(part) :]) for part in parts))
    query, key, value = (_random(context, 1, 2, rows, 32).to(dtype) for _ in range(3))
    whole = ops.invariant_attention(query, key, value, 0.2)
    last = ops.invariant_attention(query[:, :, -1:], key, value, 0.2)
    context.holds("invariant_attention: a query's bits alone and beside others", torch.equal(last, whole[:, :, -1:]))


def _policy_tokens(context: Context, rows: int) -> Callable[[torch.dtype], ops.PolicyTokens]:
    behaviour, advantages = _random(context, rows) - 6.0, _random(context, rows)
    even = torch.full((rows,), 1.0 / rows, device=context.device)

    def tokens(dtype: torch.dtype) -> ops.PolicyTokens:
        wide = torch.promote_types(dtype, torch.float32)
        return ops.PolicyTokens(*(part.to(wide) for part in (behaviour, advantages, even, even)))

    return tokens


def _random(context: Context, *shape: int, scale: float = 1.0) -> Tensor:
    """Float32, the same for a shape; rounded to bfloat16, so that every dtype gets the same numbers."""
    draw = torch.Generator(context.device).manual_seed(sum(shape))
    return (torch.randn(shape, generator=draw, device=context.device) * scale).bfloat16().float()


def _present(parts: Any) -> list[Tensor]:
    return [part for part in parts if part is not None]
