"""Log-probabilities and entropies of given tokens from hidden states and the LM head, beside logits in plain torch."""

from __future__ import annotations

from operators.rows import Row


def measure(device: str, quick: bool) -> list[Row]:
    """Forward, and forward with backward."""
    del device, quick
    return []
