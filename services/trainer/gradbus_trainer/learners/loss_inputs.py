"""The inputs of the policy loss: from the algorithm's settings and a micro-batch's samples to the kernels' types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from gradbus.algorithms import Coefficients
from gradbus.spec import AlgorithmSpec, RunSpec
from gradbus_kernels.models.lora import adapters_off
from gradbus_kernels.operators import (
    Curves,
    PolicyLoss,
    PolicySettings,
    PolicyTokens,
    Softcapped,
    TeacherRows,
    linear_distillation_loss,
    linear_grpo_loss,
    linear_score_centering,
    policy_loss,
)
from gradbus_trainer.step.batch import TokenTotals, TrainSample, sample_numbers

Scale = float | Softcapped
"""A temperature."""
HeadInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Hidden states, the LM head and the token ids."""


def policy_settings(spec: AlgorithmSpec, coefficients: Coefficients | None = None) -> PolicySettings:
    """The kernels' settings, with a step's own coefficients if it has them.

    NaN goes through: the learner checks the gradient's norm, on all ranks at the same time.
    """
    low, high = spec.clip or (0.0, 0.0)
    weights = coefficients or Coefficients(spec.kl, spec.entropy)
    return PolicySettings(
        trust_region=spec.trust_region,
        low=low,
        high=high,
        dual=spec.dual_clip,
        curves=Curves(spec.soft_temperatures or Curves().temperatures, spec.gamma_curves or Curves().gamma),
        importance=spec.importance,
        ratio=spec.ratio,
        sequence_mask=spec.sequence_mask,
        off_policy_mask=spec.off_policy_mask,
        kl=weights.kl if spec.kl_place == "loss" else 0.0,
        kl_estimator=spec.kl_estimator,
        drift=spec.drift,
        nll=spec.nll,
        entropy=weights.entropy,
        allow_nan=True,
    )


def reads_anchor(spec: RunSpec) -> bool:
    """Whether a step reads the log-probabilities of the policy before its first update, which a pass of its own computes."""
    algorithm, inner = spec.algorithm, spec.trainer.inner
    bounded = algorithm.importance == "decoupled" and inner.updates > 1
    corrected = spec.trainer.critic is not None and spec.trainer.critic.target == "vtrace"
    return bounded or corrected or algorithm.second_moment is not None or inner.stop_kl is not None


def policy_tokens(
    samples: Sequence[TrainSample],
    weights: Sequence[float],
    totals: TokenTotals,
    settings: PolicySettings,
    device: torch.device,
) -> PolicyTokens:
    """The samples' N response tokens side by side, float32 `[N]` on `device`; with their sequences only if `settings` need these.

    `weights` holds each row's weight of one trainable token (`Batch.row_weights`), `totals` are those of the whole update. A sequence of
    the loss is a whole sample: all its rows, which must be among `samples` where settings need sequences.
    """
    lengths = [len(sample.token_ids) for sample in samples]
    trainable = np.concatenate([sample.trainable for sample in samples])

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)

    def optional(name: Literal["reference_logprobs", "proximal_logprobs"]) -> torch.Tensor | None:
        if getattr(samples[0], name) is None:  # then no sample of the run has them
            return None
        return tensor(np.concatenate([getattr(sample, name) for sample in samples]))

    return PolicyTokens(
        behaviour_logprobs=tensor(np.concatenate([sample.behaviour_logprobs for sample in samples])),
        advantages=tensor(np.concatenate([sample.advantages for sample in samples])),
        weights=tensor(np.repeat(weights, lengths) * trainable),
        entropy_weights=tensor(trainable / totals.trainable),
        reference_logprobs=optional("reference_logprobs"),
        sequences=torch.from_numpy(np.repeat(sample_numbers(samples), lengths)).to(device) if settings.needs_sequences else None,
        proximal_logprobs=optional("proximal_logprobs"),
        nll_weights=tensor(trainable * np.repeat([sample.marks.best for sample in samples], lengths) / max(1, totals.best))
        if settings.nll
        else None,
    )


def joined_rows(
    samples: Sequence[TrainSample], whose: Literal["teacher_rows", "behaviour_rows"], device: torch.device
) -> TeacherRows | None:
    """The rows of the samples' N response tokens side by side, on `device`; None in a run without them."""
    rows = [found for sample in samples if (found := getattr(sample, whose)) is not None]
    if not rows:
        return None
    ids, logprobs = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in zip(*rows, strict=True))
    return TeacherRows(ids.long(), logprobs)


def loss_at_head(
    inputs: HeadInputs, samples: Sequence[TrainSample], tokens: PolicyTokens, settings: PolicySettings, scale: Scale
) -> PolicyLoss:
    """The loss of the samples by operators on the LM head, with the gradients of hidden states and head: the body's pass is left.

    With a teacher's rows the KL to these, with the sampler's the loss less the mean of its score. `inputs` are those of `head_inputs`.
    """
    device = inputs[0].device
    if (rows := joined_rows(samples, "teacher_rows", device)) is not None:
        return _distillation_loss(inputs, tokens, rows, settings, scale)
    loss = linear_grpo_loss(*inputs, tokens, settings, temperature=scale)
    rows = joined_rows(samples, "behaviour_rows", device)
    return loss if rows is None else _centred(loss, inputs, tokens, rows, settings, scale)


def _distillation_loss(inputs: HeadInputs, tokens: PolicyTokens, rows: TeacherRows, settings: PolicySettings, scale: Scale) -> PolicyLoss:
    """The KL to the teacher's rows in place of the policy loss, with this one's statistics."""
    found = linear_distillation_loss(*inputs, rows, tokens.weights, temperature=scale)
    of_policy = policy_loss(found.logprobs, found.entropies, tokens, settings)
    return replace(of_policy, total=found.total, policy=found.total.detach())


def _centred(
    loss: PolicyLoss, inputs: HeadInputs, tokens: PolicyTokens, rows: TeacherRows, settings: PolicySettings, scale: Scale
) -> PolicyLoss:
    """The policy loss less the mean of its score by the sampler's rows."""
    hidden, weight, _ = inputs
    found = linear_score_centering(hidden, weight, rows, tokens, settings, temperature=scale)
    return replace(loss, total=loss.total + found.total, distance=found.distance)


@torch.no_grad()
def with_base_reference(
    tokens: PolicyTokens, model: torch.nn.Module, forward: Callable[[], tuple[torch.Tensor, torch.Tensor]]
) -> PolicyTokens:
    """The tokens with the reference log-probabilities of a run that trains adapters: those of its model without them.

    `forward` through `model` gives log-probabilities and entropies, `[N]` each.
    """
    with adapters_off(model):
        reference, _ = forward()
    return replace(tokens, reference_logprobs=reference)
