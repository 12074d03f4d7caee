"""Causal attention over packed sequences, none of which sees another.

Linear layers run on the packed tokens, and only here the runs of `gradbus_kernels.packing` are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from gradbus_kernels.packing import Run


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, runs: Sequence[Run], scale: float, window: int | None = None
) -> torch.Tensor:
    """Attention of each packed sequence to itself, and of a branch to its root.

    query: [1, H, N, D], key and value: [1, K, N, D] with K dividing H; `runs` hold N tokens in all. `window`, if
    given, is how many tokens back (itself included) a token sees. Returns [1, N, H, D].
    """
    sizes = [run.rows * run.length for run in runs]
    queries, keys, values = (_batches(tensor, runs, sizes) for tensor in (query, key, value))
    outputs = []
    for run, q, k, v in zip(runs, queries, keys, values, strict=True):
        if run.root is not None and run.parents is not None:
            k = torch.cat((keys[run.root].index_select(0, run.parents), k), dim=2)  # noqa: PLW2901
            v = torch.cat((values[run.root].index_select(0, run.parents), v), dim=2)  # noqa: PLW2901
        mask = _mask(q.shape[2], k.shape[2], window, q.device)
        output = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None]


def packed_attention_reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same by its definition: softmax over all N tokens where `visible` (bool [N, N]) allows. Returns [1, N, H, D]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(~visible, float("-inf"))
    return (scores.softmax(dim=-1) @ value).transpose(1, 2)


def _batches(tensor: torch.Tensor, runs: Sequence[Run], sizes: Sequence[int]) -> list[torch.Tensor]:
    """Views [rows, heads, length, D], one a run, of [1, heads, N, D]."""
    parts = torch.split(tensor[0], list(sizes), dim=1)
    return [part.view(len(part), run.rows, run.length, -1).transpose(0, 1) for run, part in zip(runs, parts, strict=True)]


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """bool [queries, keys], the last query at the last key; None where plain causal attention does."""
    if queries == keys and (window is None or window >= keys):
        return None
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return visible if window is None else visible.triu(keys - queries - window + 1)
