"""DeepSpeed's own configuration and its optimizer, from the run spec."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from torch.nn import Parameter

from gradbus.spec import TrainerSpec

_BUCKET_ELEMENTS = 500_000_000
_ALWAYS_WHOLE_ELEMENTS = 100_000


def deepspeed_config(trainer: TrainerSpec, parameters: int) -> dict[str, Any]:
    """The configuration for a model of `parameters` parameters. The batch sizes have no effect: the learner decides where a step ends."""
    chosen = trainer.deepspeed
    host = {"device": "cpu"}
    bucket = min(parameters + parameters % 2, _BUCKET_ELEMENTS)  # DeepSpeed takes even sizes only
    zero: dict[str, Any] = {
        "stage": chosen.zero_stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        # DeepSpeed's default, but small models are partitioned too.
        "stage3_param_persistence_threshold": min(parameters // 1000, _ALWAYS_WHOLE_ELEMENTS),
    }
    zero |= {"offload_optimizer": host} if chosen.offload != "none" else {}
    zero |= {"offload_param": host} if chosen.offload == "all" else {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # Without ZeRO the learner clips by itself, because DeepSpeed does not return the norm.
        "gradient_clipping": trainer.max_grad_norm if chosen.zero_stage else 0.0,
    }
    if trainer.dtype == "bf16":
        config |= {"bf16": {"enabled": True, "check_grad_overflow": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return config


def deepspeed_optimizer(trainer: TrainerSpec, parameters: list[Parameter]) -> torch.optim.Optimizer:
    """AdamW, in the implementation that the spec names."""
    if trainer.deepspeed.optimizer == "cpu_adam":
        cpu_adam: torch.optim.Optimizer = DeepSpeedCPUAdam(
            parameters, lr=trainer.learning_rate, betas=trainer.betas, eps=1e-8, weight_decay=trainer.weight_decay, adamw_mode=True
        )
        return cpu_adam
    return torch.optim.AdamW(
        parameters, lr=trainer.learning_rate, betas=trainer.betas, eps=1e-8, weight_decay=trainer.weight_decay, fused=True
    )
