"""`sample` beside sorts in plain torch, and `linear_sample` beside the whole logits."""

from __future__ import annotations

import torch
from operators.rows import Comparison, Row, Work, compare
from torch import Tensor

from gradbus_kernels.operators import Sampling, linear_sample, sample, sample_reference

ASKED = {
    "": Sampling(),
    ", top-k 50, top-p 0.9": Sampling(top_k=50, top_p=0.9),
    ", top-p 0.95": Sampling(top_p=0.95),
    ", min-p 0.05": Sampling(min_p=0.05),
}
SIZES = {
    "cpu": {"batch": 16, "vocabulary": 151_936, "width": 896},
    "cuda": {"batch": 256, "vocabulary": 128_256, "width": 4096},
}
SMALL = {"batch": 4, "vocabulary": 5000, "width": 64}


def measure(device: str, quick: bool) -> list[Row]:
    """Each kind of support, then the fused operator."""
    sizes = SMALL if quick else SIZES[device]
    shared = {"rounds": 1, "repeats": 3 if device == "cpu" else 20}
    rows = []
    for dtype in ("float32", "bfloat16") if device == "cpu" else ("bfloat16",):
        for asked in ASKED:
            case = {"asked": asked, "batch": sizes["batch"], "vocabulary": sizes["vocabulary"]}
            shape = f"B={sizes['batch']} V={sizes['vocabulary']:,}"
            rows += compare(Comparison("sample", f"sample{asked}", shape, dtype, case, ("naive", "ours"), **shared), device)
        shape = f"B={sizes['batch']} V={sizes['vocabulary']:,} H={sizes['width']:,}"
        rows += compare(Comparison("sample", "linear_sample", shape, dtype, {"asked": None, **sizes}, ("naive", "ours"), **shared), device)
    return rows


def prepare(implementation: str, device: str, dtype: str, asked: str | None, **sizes: int) -> Work:
    """One call. Half of each row's probability lies on about a dozen tokens, as in a language model's."""
    torch.manual_seed(0)
    batch, vocabulary = sizes["batch"], sizes["vocabulary"]
    numbers = torch.arange(batch, device=device)
    if asked is None:
        width = sizes["width"]
        hidden = torch.randn(batch, width, device=device).to(getattr(torch, dtype))
        weight = torch.empty(vocabulary, width, device=device, dtype=hidden.dtype).normal_(0.0, 3.0 / width**0.5)
        if implementation == "naive":
            return lambda: sample_reference(hidden @ weight.T, numbers, numbers)
        return lambda: linear_sample(hidden, weight, numbers, numbers)
    logits = torch.empty(batch, vocabulary, device=device).normal_(0.0, 2.0)
    logits[:, ::9973] += 14.0
    logits, sampling = logits.to(getattr(torch, dtype)), ASKED[asked]

    def work() -> tuple[Tensor, ...]:
        return (sample_reference if implementation == "naive" else sample)(logits, numbers, numbers, sampling)

    return work
