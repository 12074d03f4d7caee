"""TRL's GRPOTrainer with the loss fused into the LM head: no logits, and no second pass over the head for the gradient.

    pip install '.[kernels]' trl
    python examples/trl_drop_in.py                    # a few steps of a tiny model with random weights

Where you write `GRPOTrainer(...)`, write `FusedGRPOTrainer(...)`. It is for one process a model (no DDP, FSDP or ZeRO: they want the
model's own forward called) and for text.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from gradbus_kernels.operators import Curves, PolicySettings, PolicyTokens, linear_grpo_loss, linear_logprob

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")
REGIONS = {"cispo": "cap", "sapo": "soft", "vespo": "gamma"}
"""The trust region of a loss that does not clip."""


class FusedGRPOTrainer(GRPOTrainer):
    """GRPOTrainer with another computation of the loss; `importance_sampling_level` may be "sequence" (GSPO)."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._refuse_what_is_not_fused()
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        hidden, ids = self._completions(model, inputs)
        head = model.get_output_embeddings().weight
        old = inputs.get("old_per_token_logps")
        if old is None:  # the policy itself
            with torch.no_grad():
                old = linear_logprob(hidden, head, ids, temperature=self.temperature, entropy=False).logprobs.view_as(mask)
        loss = linear_grpo_loss(hidden, head, ids, self._tokens(inputs, mask, old), self._settings(), temperature=self.temperature)
        metrics = self._metrics["train" if model.training else "eval"]
        metrics["entropy"].append(loss.entropies.sum().item() / max(1, int(mask.sum())))
        for name, share in self._clipped(loss.ratios.view_as(mask), inputs["advantages"].view(len(mask), -1), mask).items():
            metrics[name].append(share.item())
        return loss.total

    def _clipped(self, ratios: Tensor, advantages: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Fractions of tokens (or of sequences, with one ratio each) whose loss is the clipped term; the sign of the advantage decides."""
        if self.loss_type in {"sapo", "vespo"}:
            return {}
        if self.importance_sampling_level == "sequence":
            ratios = ((ratios.log() * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()
            mask = torch.ones_like(ratios)
        if self.loss_type == "cispo":
            return {"cispo_clip_ratio": _share((ratios > self.epsilon_high) & (advantages > 0), mask)}
        low, high = (ratios < 1 - self.epsilon_low) & (advantages < 0), (ratios > 1 + self.epsilon_high) & (advantages > 0)
        named = {"low": low, "high": high, "region": low | high}
        shares = {f"clip_ratio/{name}_mean": _share(clipped, mask) for name, clipped in named.items()}
        by_sequence = {name: (named[name] * mask).sum(-1) / mask.sum(-1) for name in ("low", "high")}
        return shares | {
            "clip_ratio/low_min": by_sequence["low"][mask.any(-1)].min(),
            "clip_ratio/high_max": by_sequence["high"][mask.any(-1)].max(),
        }

    def _completions(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Hidden states that predict the completions' tokens, `[B · T, H]`, and these tokens."""
        ids = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), dim=1)
        mask = torch.cat((inputs["prompt_mask"], inputs["completion_mask"]), dim=1)
        hidden = model.get_decoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = inputs["completion_ids"].shape[1]
        return hidden[:, -kept - 1 : -1].flatten(0, 1), inputs["completion_ids"].flatten()

    def _tokens(self, inputs: dict[str, Any], mask: Tensor, old: Tensor) -> PolicyTokens:
        advantages = inputs["advantages"].view(len(mask), -1).expand_as(mask)
        accumulated = self.current_gradient_accumulation_steps if self.model.training else 1
        reference = inputs["ref_per_token_logps"].flatten() if self.beta else None
        return PolicyTokens(
            behaviour_logprobs=old.flatten(),
            advantages=advantages.flatten(),
            weights=(mask / self._normaliser(inputs, mask, accumulated)).flatten(),
            entropy_weights=(mask / mask.sum().clamp(min=1) / accumulated).flatten(),
            reference_logprobs=reference,
            sequences=torch.arange(len(mask), device=mask.device).repeat_interleave(mask.shape[1]),
        )

    def _normaliser(self, inputs: dict[str, Any], mask: Tensor, accumulated: int) -> Tensor | float:
        """The number by which TRL divides a token's loss."""
        if self.loss_type in {"grpo", "sapo"}:
            return mask.sum(-1, keepdim=True).clamp(min=1) * len(mask) * accumulated
        if self.loss_type == "bnpo":
            return mask.sum().clamp(min=1) * accumulated
        if self.loss_type == "dr_grpo":
            return len(mask) * self.max_completion_length * accumulated
        window = accumulated / self.args.steps_per_generation if self.model.training else 1.0
        return inputs["num_items_in_batch"].clamp(min=1) * window

    def _settings(self) -> PolicySettings:
        # TRL's epsilon_high is CISPO's upper bound itself; ours is its distance from 1.
        bounds = (1.0, self.epsilon_high - 1.0) if self.loss_type == "cispo" else (self.epsilon_low, self.epsilon_high)
        given = self.args
        gamma = (given.vespo_k_pos, given.vespo_lambda_pos), (given.vespo_k_neg, given.vespo_lambda_neg)
        return PolicySettings(
            trust_region=REGIONS.get(self.loss_type, "clip"),
            low=bounds[0],
            high=bounds[1],
            dual=given.delta,
            curves=Curves((given.sapo_temperature_pos, given.sapo_temperature_neg), gamma),
            ratio="product" if self.loss_type == "vespo" else self.importance_sampling_level,
            off_policy_mask=self.off_policy_mask_threshold,
            kl=self.beta,
            kl_estimator="unbiased" if given.use_bias_correction_kl else "k3",
            entropy=self.entropy_coef,
        )

    def _refuse_what_is_not_fused(self) -> None:
        by_sequence = self.importance_sampling_level == "sequence"
        clips, delta = self.loss_type not in REGIONS, self.args.delta
        asked = {
            f'loss_type="{self.loss_type}"': self.loss_type not in LOSSES,
            # TRL also lowers the bound of positive advantages to a delta that is less than it.
            f"delta={delta}": delta is not None and (not clips or delta <= 1.0 + self.epsilon_high),
            "top_entropy_quantile": self.top_entropy_quantile < 1.0,
            "use_vllm": self.use_vllm,
            # Our KL is corrected by each token's ratio.
            "use_bias_correction_kl of sequences": bool(self.beta) and self.args.use_bias_correction_kl and by_sequence,
            f'loss_type="{self.loss_type}" of sequences': by_sequence and not clips,
            "use_adaptive_entropy": self.use_adaptive_entropy,
            "several processes": self.accelerator.num_processes > 1,
            "a router's auxiliary loss": self.aux_loss_enabled,
            "a head with a bias": getattr(self.model.get_output_embeddings(), "bias", None) is not None,
        }
        # Transformations of the logits after the LM head, as in Gemma, Cohere and Granite.
        config = self.model.config.get_text_config()
        asked |= {
            name: getattr(config, name, None) not in (None, 1.0) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
        }
        for what, is_asked in asked.items():
            if is_asked:
                raise ValueError(f"FusedGRPOTrainer does not compute {what}; use GRPOTrainer for it")


def _share(clipped: Tensor, mask: Tensor) -> Tensor:
    return (clipped * mask).sum() / mask.sum().clamp(min=1)


def main() -> None:
    """Rewards short answers."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from tiny_models import character_tokenizer, tiny_qwen2  # noqa: PLC0415 -- the examples share a module but are not a package

    tokenizer = character_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder, use_cpu=not torch.cuda.is_available(), bf16=False, max_steps=3, num_generations=4, per_device_train_batch_size=8,
            max_completion_length=8, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        FusedGRPOTrainer(
            model=tiny_qwen2(tokenizer, 0),
            reward_funcs=lambda completions, **_: [-float(len(completion)) for completion in completions],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "12+34="}] * 32),
            processing_class=tokenizer,
        ).train()


if __name__ == "__main__":
    main()
