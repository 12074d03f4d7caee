"""From samples to what the loss says of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gradbus_kernels.operators import PolicyTokens
from gradbus_trainer.step.batch import TrainSample


def policy_tokens(samples: Sequence[TrainSample], weights: Sequence[float], total: int, device: torch.device) -> PolicyTokens:
    """The samples' tokens side by side; `weights` is each sample's weight of one trainable token, `total` the step's count."""
    lengths = [len(sample.token_ids) for sample in samples]
    trainable = np.concatenate([sample.trainable for sample in samples])

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)

    references = [sample.reference_logprobs for sample in samples if sample.reference_logprobs is not None]
    return PolicyTokens(
        behaviour_logprobs=tensor(np.concatenate([sample.behaviour_logprobs for sample in samples])),
        advantages=tensor(np.repeat([sample.advantage for sample in samples], lengths)),
        weights=tensor(np.repeat(weights, lengths) * trainable),
        entropy_weights=tensor(trainable / total),
        reference_logprobs=tensor(np.concatenate(references)) if len(references) == len(samples) else None,
    )
