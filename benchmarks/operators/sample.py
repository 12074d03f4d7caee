"""`sample` beside sorts in plain torch, and `linear_sample` beside the whole logits.

Roofline of "ours, captured" on one H200 (4.8 TB/s), B=256 V=128,256 in bfloat16, computed and not measured: 68 MB without a cut-off, 14 us;
79 MB with one, 17 us. With launches and the search among candidates about 32 us; the goal is 45.
"""

from __future__ import annotations

import torch
from operators.rows import Comparison, Row, Work, compare
from torch import Tensor

from gradbus_kernels.operators import (
    SamplingParams,
    counter_uniform,
    linear_sample,
    linear_sample_reference,
    sample,
    sample_at,
    sample_reference,
)

ASKED = {
    "": SamplingParams(),
    ", top-k 50, top-p 0.9": SamplingParams(top_k=50, top_p=0.9),
    ", top-p 0.95": SamplingParams(top_p=0.95),
    ", min-p 0.05": SamplingParams(min_p=0.05),
}
SIZES = {
    "cpu": {"batch": 16, "vocabulary": 151_936, "width": 896},
    "cuda": {"batch": 256, "vocabulary": 128_256, "width": 4096},
}
HEAD = ("", ", top-k 50, top-p 0.9")
"""Kinds of support that the fused operator is measured with."""
FUSED_BATCH = 64
"""At most: it is for small batches."""
SMALL = {"batch": 4, "vocabulary": 5000, "width": 64}


def measure(device: str, quick: bool) -> list[Row]:
    """Each kind of support, then the fused operator."""
    sizes = SMALL if quick else SIZES[device]
    shared = {"rounds": 1, "repeats": 3 if device == "cpu" else 20}
    names = ("naive", "ours") if device == "cpu" else ("naive", "ours", "ours, captured")
    rows = []
    for dtype in ("float32", "bfloat16") if device == "cpu" else ("bfloat16",):
        for asked in ASKED:
            case = {"asked": asked, "width": 0, "batch": sizes["batch"], "vocabulary": sizes["vocabulary"]}
            shape = f"B={sizes['batch']} V={sizes['vocabulary']:,}"
            rows += compare(Comparison("sample", f"sample{asked}", shape, dtype, case, names, **shared), device)
        for asked in HEAD:
            case = {"asked": asked, **sizes, "batch": min(FUSED_BATCH, sizes["batch"])}
            shape = f"B={case['batch']} V={sizes['vocabulary']:,} H={sizes['width']:,}"
            rows += compare(Comparison("sample", f"linear_sample{asked}", shape, dtype, case, ("naive", "ours"), **shared), device)
    return rows


def prepare(implementation: str, device: str, dtype: str, asked: str, **sizes: int) -> Work:
    """One call. Half of each row's probability lies on about a dozen tokens, as in a language model's."""
    torch.manual_seed(0)
    batch, vocabulary, width = sizes["batch"], sizes["vocabulary"], sizes["width"]
    numbers, sampling = torch.arange(batch, device=device), ASKED[asked]
    if width:
        hidden = torch.randn(batch, width, device=device).to(getattr(torch, dtype))
        weight = torch.empty(vocabulary, width, device=device, dtype=hidden.dtype).normal_(0.0, 3.0 / width**0.5)
        operator = linear_sample_reference if implementation == "naive" else linear_sample
        return lambda: operator(hidden, weight, numbers, numbers, sampling)
    logits = torch.empty(batch, vocabulary, device=device).normal_(0.0, 2.0)
    logits[:, ::9973] += 14.0
    logits = logits.to(getattr(torch, dtype))
    if implementation == "ours, captured":
        return _captured(logits, numbers, sampling)

    def work() -> tuple[Tensor, ...]:
        return (sample_reference if implementation == "naive" else sample)(logits, numbers, numbers, sampling)

    return work


def _captured(logits: Tensor, numbers: Tensor, sampling: SamplingParams) -> Work:
    """The kernels alone, from a CUDA graph, as in a decode loop: random numbers are made ahead, and arguments are not checked."""
    uniforms = counter_uniform(numbers, numbers)
    drawn = sample_at(logits, uniforms, sampling)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = sample_at(logits, uniforms, sampling)

    def work() -> tuple[Tensor, ...]:
        graph.replay()
        return drawn

    return work
