"""`linear_logprob` beside logits in plain torch: log-probabilities of given tokens and entropies from hidden states and an LM head."""

from __future__ import annotations

from functools import partial

import torch
from operators.rows import Comparison, Row, Work, compare
from torch import Tensor

from gradbus_kernels.operators import linear_logprob, linear_logprob_reference
from gradbus_kernels.operators.linear_logprob.api import LinearLogprob

SIZES = {"cpu": {"tokens": 4096, "vocabulary": 151_936, "width": 896}, "cuda": {"tokens": 8192, "vocabulary": 151_936, "width": 4096}}
SMALL = {"tokens": 128, "vocabulary": 2000, "width": 64}


def measure(device: str, quick: bool) -> list[Row]:
    """Forward, and forward with backward."""
    sizes = SMALL if quick else SIZES[device]
    rows = []
    for dtype in ("float32", "bfloat16") if device == "cpu" else ("bfloat16",):
        # In float32 the products are nearly all of the time: their backward pass is in the loss's rows.
        for backward in (False,) if dtype == "float32" and not quick else (False, True):
            comparison = Comparison(
                module="linear_logprob",
                operator="linear_logprob" + (", with backward" if backward else ""),
                shape=shape_of(sizes),
                dtype=dtype,
                case={**sizes, "backward": backward},
                implementations=("naive", "ours") if backward else ("naive, no entropy", "ours, no entropy", "naive", "ours"),
                rounds=rounds(device, quick),
                repeats=1 if device == "cpu" else 20,
            )
            rows += compare(comparison, device)
    return rows


def rounds(device: str, quick: bool) -> int:
    """Calls of up to a minute of a processor are taken once."""
    return 1 if quick or device == "cpu" else 3


def shape_of(sizes: dict[str, int]) -> str:
    """As a row shows it."""
    return f"N={sizes['tokens']:,} V={sizes['vocabulary']:,} H={sizes['width']:,}"


def head(device: str, dtype: str, tokens: int, vocabulary: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states and head whose logits have a deviation of about 3, and ids."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=device).to(getattr(torch, dtype))
    weight = torch.empty(vocabulary, width, device=device, dtype=hidden.dtype).normal_(0.0, 3.0 / width**0.5)
    return hidden, weight, torch.randint(vocabulary, (tokens,), device=device)


def prepare(implementation: str, backward: bool, device: str, dtype: str, **sizes: int) -> Work:
    """One call, the loss's derivative by every token being 1."""
    hidden, weight, ids = head(device, dtype, **sizes)
    hidden.requires_grad_(backward)
    weight.requires_grad_(backward)
    operator = {
        "naive, no entropy": without_entropy,
        "ours, no entropy": partial(linear_logprob, entropy=False),
        "naive": linear_logprob_reference,
        "ours": linear_logprob,
    }[implementation]

    def work() -> list[Tensor | None]:
        hidden.grad = weight.grad = None
        with torch.set_grad_enabled(backward):
            logprobs, entropies = operator(hidden, weight, ids)
        if backward and entropies is not None:
            (logprobs.sum() - 0.001 * entropies.sum()).backward()
        return [logprobs.detach(), None if entropies is None else entropies.detach(), hidden.grad, weight.grad]

    return work


def without_entropy(hidden: Tensor, weight: Tensor, ids: Tensor) -> LinearLogprob:
    """The least that plain torch can do: it gives no entropies."""
    logprobs = (hidden @ weight.T).float().log_softmax(dim=-1).gather(1, ids[:, None]).squeeze(1)
    return LinearLogprob(logprobs, None)
