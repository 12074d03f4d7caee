"""The check of a loaded model before it is used: Gradbus's interface must compute what transformers' model does by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from gradbus.errors import ModelError
from gradbus_kernels.models.fallback.model import TransformersLM
from gradbus_kernels.operators import PrefixLayout, linear_logprob

_LENGTHS: Final = (5, 12)
_BOUNDS: Final = {torch.float32: 1e-2, torch.bfloat16: 0.5}
"""In nats. Rounding stays far below, and a state that leaks or a head that is computed otherwise is far above."""


@dataclass(frozen=True, slots=True)
class _Row:
    prompt_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]


@torch.no_grad()
def check_forward(model: TransformersLM) -> None:
    """Raises ModelError if log-probabilities of two short texts in one batch differ from those of each alone, by the whole network.

    The latter must be finite: else the folder is at fault.
    """
    draw = np.random.default_rng(0).integers
    rows = [_Row(*np.split(draw(0, model.vocab_size, length).astype(np.int32), [2])) for length in _LENGTHS]
    batch = model.pack(rows)
    hidden = model(batch).index_select(0, batch.selected)
    temperature = model.tempered(1.0)
    found = linear_logprob(hidden, model.head_weight, batch.targets, temperature=temperature, entropy=False, allow_nan=True).logprobs
    expected = torch.cat([_alone(model, row) for row in rows])
    if not bool(expected.isfinite().all()):
        raise ModelError(
            f"{model.family.architecture} has log-probabilities that are not finite, by transformers' own forward pass; "
            "correct config.json or the weights, or take the model's own files"
        )
    error = float((found - expected).abs().max())
    bound = _BOUNDS.get(hidden.dtype, _BOUNDS[torch.float32])
    if not error <= bound:
        who = f"by Gradbus than by transformers {transformers.__version__}"
        raise ModelError(
            f"{model.family.architecture} is computed otherwise {who}: log-probabilities differ by {error:.2g} nats; "
            "report it with the model's config.json, and choose another model until then"
        )


def _alone(model: TransformersLM, row: _Row) -> Tensor:
    ids = torch.from_numpy(np.concatenate((row.prompt_ids, row.token_ids)).astype(np.int64)).to(model.device)[None]
    layout = PrefixLayout.of_lengths([ids.shape[1]], [None])
    packed: dict[str, Any] = {"layout": layout, "position_ids": layout.position_ids(model.device)[None]} if model.shares_prompts else {}
    logits = model.network(input_ids=ids, use_cache=False, **packed).logits[0, len(row.prompt_ids) - 1 : -1]
    found: Tensor = logits.float().log_softmax(-1).gather(1, ids[0, len(row.prompt_ids) :, None])[:, 0]
    return found
