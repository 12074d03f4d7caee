"""Compiles, on a machine without a GPU, every Triton kernel that calls of an operator launch; prints their names.

A program of its own, `python gpu_compiler.py {sm_90 | gfx942} <operator>`: the interpreter of the other tests cannot be switched off
in their process. Nothing is launched, so results mean nothing.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from gradbus_kernels.operators import CachedRule, HeadNorms, LayerCache, Places, PrefixLayout, SamplingParams
from gradbus_kernels.operators.prefix_shared_attention.layout import AttentionRule
from gradbus_kernels.operators.sample.reference import columns

TARGETS = {"sm_90": GPUTarget("cuda", 90, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}
CUT_OFF = SamplingParams(0.7, 50, 0.9, 0.02, greedy=torch.tensor([True, False]))
CASES = ((torch.bfloat16, SamplingParams()), (torch.bfloat16, CUT_OFF), (torch.float32, CUT_OFF))


def sample() -> None:
    from gradbus_kernels.operators.sample.triton import draw_triton

    for dtype, sampling in CASES:
        logits = torch.empty(2, 128_256, dtype=dtype)
        draw_triton(logits, torch.empty(2, 1, dtype=torch.float64), columns(sampling, logits))


def linear_sample() -> None:
    from gradbus_kernels.operators.linear_sample.triton import draw_linear_triton

    for (dtype, sampling), softcap in zip((*CASES[1:], CASES[0]), (None, None, 30.0), strict=True):
        hidden, weight = torch.empty(2, 4096, dtype=dtype), torch.empty(128_256, 4096, dtype=dtype)
        draw_linear_triton(hidden, weight, torch.empty(2, 1, dtype=torch.float64), columns(sampling, hidden), softcap)


def invariant_embedding() -> None:
    from gradbus_kernels.operators.batch_invariant.triton.embedding import row_sums_triton

    for dtype in (torch.bfloat16, torch.float32):
        row_sums_triton(torch.tensor([5, 3, 5]), torch.empty(3, 4096, dtype=dtype), 9)


def decoder_layer() -> None:
    from gradbus_kernels.operators.decoder_layer.rotary import Rotation
    from gradbus_kernels.operators.decoder_layer.triton import head_norm, norm, rotary, swiglu

    for dtype in (torch.bfloat16, torch.float32):
        both, heads = (torch.empty(*shape, dtype=dtype, requires_grad=True) for shape in ((3, 9728), (3, 18, 64)))
        weight, turn = torch.empty(9728, dtype=dtype, requires_grad=True), torch.empty(3, 1, 64, dtype=dtype)
        for gelu in (False, True):
            kind = norm.Kind(1e-6, offset=float(gelu), rounded=not gelu)
            swiglu.gated(norm.rms_norm(both, weight, kind), gelu).sum().backward()
        sum(part.sum() for part in rotary.rotary(heads, turn, turn, 2)).backward()
        norms = weight.detach()[:64], weight.detach()[:64], 1e-6
        sum(part.sum() for part in head_norm.normed_rotary(heads, norms, Rotation(turn, turn), 2)).backward()


def prefix_shared_attention() -> None:
    from gradbus_kernels.operators.prefix_shared_attention.triton import attend_on_gpu

    layout = PrefixLayout.of_lengths([300, 8300, 9], [None, 0, 0])
    for dtype, softcap in ((torch.bfloat16, None), (torch.float32, None), (torch.bfloat16, 50.0)):
        inputs = [torch.randn(layout.tokens, heads, 128).to(dtype).requires_grad_() for heads in (4, 2, 2)]
        attend_on_gpu(*inputs, AttentionRule(layout, 0.1, softcap=softcap)).sum().backward()


def cached_attention() -> None:
    from gradbus_kernels.operators.cached_attention.triton import attend_cached, copy_lines, rotate_into

    for dtype, count, rule in ((torch.bfloat16, 1, CachedRule(0.1)), (torch.float32, 9, CachedRule(0.1, 300, 50.0))):
        cache = LayerCache(*torch.empty(2, 3, 2, 1024, 128, dtype=dtype))
        places, norm = Places(*torch.zeros(2, 3, dtype=torch.int64)), torch.empty(128, dtype=dtype)
        queries = rotate_into(
            torch.empty(3, count, 8 * 128, dtype=dtype), torch.empty(2, 1024, 128), cache, places, HeadNorms(norm, norm, 1e-6)
        )
        attend_cached(queries, cache, places, rule, torch.empty(4, dtype=dtype))
        copy_lines(*(torch.empty(4, 3, 2, 64, 128, dtype=dtype), places.rows) * 2, 40)


def compile_instead_of_launching(target: GPUTarget) -> set[str]:
    names: set[str] = set()
    run = JITFunction.run

    def compiled(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        names.add(kernel.__name__)
        return run(kernel, *arguments, grid=grid, warmup=True, **keywords)

    JITFunction.run = compiled
    driver.set_active(SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0))
    return names


if __name__ == "__main__":
    launched = compile_instead_of_launching(TARGETS[sys.argv[1]])
    globals()[sys.argv[2]]()
    print(*sorted(launched))
