"""`selected_logprob` beside log_softmax in plain torch, and beside one read and one copy of the logits.

The read is the least that any of them takes; the copy, which reads and writes, measures the memory's bandwidth in the same run.
"""

from __future__ import annotations

import torch
from operators.rows import Comparison, Row, Work, compare
from torch import Tensor

from gradbus_kernels.operators import SelectedLogprob, selected_logprob, selected_logprob_reference

SIZES = {"cpu": [{"tokens": 256, "vocabulary": 151_936}], "cuda": [{"tokens": n, "vocabulary": 128_256} for n in (4096, 8192)]}
SMALL = [{"tokens": 16, "vocabulary": 5000}]
# The measured forms: entropies, a second model, the backward pass.
ASKED = {
    "": (False, False, False),
    ", entropy": (True, False, False),
    ", entropy and KL": (True, True, False),
    ", with backward": (False, False, True),
    ", entropy, with backward": (True, False, True),
}


def measure(device: str, quick: bool) -> list[Row]:
    """Forward, and forward with backward."""
    rows = []
    for sizes in SMALL if quick else SIZES[device]:
        for dtype in ("float32", "bfloat16") if device == "cpu" else ("bfloat16",):
            for asked, (entropy, second, backward) in ASKED.items():
                comparison = Comparison(
                    module="selected_logprob",
                    operator=f"selected_logprob{asked}",
                    shape=f"N={sizes['tokens']:,} V={sizes['vocabulary']:,}",
                    dtype=dtype,
                    case={**sizes, "entropy": entropy, "second": second, "backward": backward},
                    implementations=("naive", "ours") if asked else ("naive", "ours", "one read", "one copy"),
                    rounds=1,
                    repeats=3 if device == "cpu" else 20,
                )
                rows += compare(comparison, device)
    return rows


def prepare(implementation: str, device: str, dtype: str, tokens: int, vocabulary: int, **asked: bool) -> Work:
    """One call, the loss's derivative by every row being 1."""
    torch.manual_seed(0)
    logits = torch.empty(tokens, vocabulary, device=device, dtype=getattr(torch, dtype)).normal_(0.0, 3.0)
    other = (logits + 0.01).requires_grad_(False) if asked["second"] else None
    ids = torch.randint(vocabulary, (tokens,), device=device)
    logits.requires_grad_(asked["backward"])
    operator = {"naive": selected_logprob_reference, "ours": selected_logprob, "one read": one_read, "one copy": one_copy}[implementation]

    def work() -> list[Tensor | None]:
        logits.grad = None
        with torch.set_grad_enabled(asked["backward"]):
            outcome = operator(logits, ids, 1.0, asked["entropy"], other)
        if asked["backward"]:
            (outcome.logprobs.sum() + (0.0 if outcome.entropy is None else 0.01 * outcome.entropy.sum())).backward()
        return [*(None if part is None else part.detach() for part in outcome), logits.grad]

    return work


def one_read(logits: Tensor, ids: Tensor, *_: object) -> SelectedLogprob:
    """No operator: the maximum of each row."""
    del ids
    return SelectedLogprob(logits.amax(1), None, None, None)


def one_copy(logits: Tensor, ids: Tensor, *_: object) -> SelectedLogprob:
    """No operator either: all logits once more."""
    del ids
    return SelectedLogprob(logits.clone(), None, None, None)
