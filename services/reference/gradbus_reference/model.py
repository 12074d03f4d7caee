"""The reference model: a run's base model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.models.packing import TokenSequence, split_by_tokens


class ReferenceModel:
    """Token log-probabilities under frozen weights."""

    def __init__(self, folder: Path, budget: int = 8192, device: str = "cpu") -> None:
        """Loads the model in `folder`; `budget` is the number of tokens of one forward pass. Raises ModelError."""
        self._model = load_causal_lm(folder, device=device)
        self._model.requires_grad_(False)
        self._budget = budget

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary: every token id is below it."""
        return self._model.config.vocab_size

    @torch.inference_mode()
    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float) -> list[NDArray[np.float32]]:
        """Log-probabilities of the response tokens: one float32 `[T]` a sequence, in order. Logits are divided by `temperature`."""
        results: list[NDArray[np.float32]] = []
        for part in split_by_tokens(sequences, self._budget):
            logprobs, _ = packed_logprobs(self._model, part, temperature)
            results.extend(np.split(logprobs.cpu().numpy(), np.cumsum([len(sequence.token_ids) for sequence in part])[:-1]))
        return results
