"""Part 2: the decoder on the device beside transformers on the CPU, and beside itself on the CPU, in values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from gpu_check.context import Context
from gpu_check.random_models import batch, variants, write_model
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.operators import using
from gradbus_trainer.learners.determinism import fix_order_of_sums
from gradbus_trainer.step.batch import TrainSample

_FP32: Final = 5e-5
_BF16: Final = 1e-3
"""Beyond twice the CPU's own error in bfloat16."""
_GRADIENT: Final = 1e-4


def run(context: Context) -> None:
    """Every tiny variant, packed with shared prompts, and with transformers models that it computes."""
    fix_order_of_sums(context.device)  # as the trainer does
    theirs = find_spec("transformers") is not None
    context.fact("versions", {"decoder_reference": "transformers" if theirs else "float64 reference"})
    for number, (name, config) in enumerate(variants()):
        _check(context, name, write_model(context.folder / f"model-{number}", config, context.device), config["vocab_size"])
    if theirs:
        from gpu_check.transformers_models import VOCABULARY, transformers_models  # noqa: PLC0415 -- only where it is installed

        for name, folder in transformers_models(context.folder):
            _check(context, f"{name} by transformers", folder, VOCABULARY)


def _check(context: Context, name: str, folder: Path, vocabulary: int) -> None:
    groups, prompt, response = (2, 11, 5) if context.dry else (4, 70, 90)
    rows = batch(0, vocabulary, groups, prompt, response).samples
    exact = _of_transformers(folder, rows) if find_spec("transformers") is not None else _exact(folder, rows)
    ours, gradients = _packed(folder, rows, torch.float32, context.device)
    context.correct(f"{name}, float32: log-probability", _largest(ours, exact), _FP32, "nats")
    rounded, _ = _packed(folder, rows, torch.bfloat16, context.device)
    bound = 2 * _largest(_packed(folder, rows, torch.bfloat16, "cpu")[0], exact) + _BF16
    context.correct(f"{name}, bfloat16: log-probability", _largest(rounded, exact), bound, "nats")
    on_cpu, wanted = _packed(folder, rows, torch.float32, "cpu")
    context.correct(f"{name}, float32: log-probability beside the CPU's", _largest(ours, on_cpu), _FP32, "nats")
    apart = max(float((found - other).norm() / other.norm().clamp_min(1e-12)) for found, other in zip(gradients, wanted, strict=True))
    context.correct(f"{name}, float32: gradients beside the CPU's, relative", apart, _GRADIENT)
    again, more = _packed(folder, rows, torch.float32, context.device)
    context.holds(f"{name}: the same bits twice, gradients too", all(map(torch.equal, [ours, *gradients], [again, *more])))


def _packed(folder: Path, rows: Sequence[TrainSample], dtype: torch.dtype, device: str) -> tuple[Tensor, list[Tensor]]:
    """Log-probabilities of all response tokens, and the gradients of their weighted sum; on the CPU."""
    model = load_causal_lm(folder, dtype, device)
    logprobs, entropies = packed_logprobs(model, rows, 1.0)
    (logprobs.dot(torch.linspace(-1.0, 1.0, len(logprobs), device=device)) + 0.1 * entropies.sum()).backward()
    gradients = [parameter.grad.float().cpu() for parameter in model.parameters() if parameter.grad is not None]
    return logprobs.detach().float().cpu(), gradients


@torch.no_grad()
def _exact(folder: Path, rows: Sequence[TrainSample]) -> Tensor:
    """By our own decoder and the operators' references, in float64."""
    with using("reference"):
        return packed_logprobs(load_causal_lm(folder, torch.float64), rows, 1.0)[0]


@torch.no_grad()
def _of_transformers(folder: Path, rows: Sequence[TrainSample]) -> Tensor:
    """Each sequence alone, eager attention, float64."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 -- only where it is installed

    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64)
    model.set_experts_implementation("eager")  # the other multiplies no float64
    found = []
    for row in rows:
        ids = torch.tensor([*row.prompt_ids, *row.token_ids])[None]
        table = model(ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        found.append(table.gather(1, ids[0, len(row.prompt_ids) :, None])[:, 0])
    return torch.cat(found)


def _largest(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).abs().max())
