"""The drop-in gives TRL's loss and TRL's gradients on the same batch."""

from __future__ import annotations

import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM

LENGTHS, LONGEST = (5, 1, 3, 4), 5


@pytest.fixture
def make_trainer(tiny_models, tmp_path):
    tokenizer = tiny_models.character_tokenizer()
    tiny_models.tiny_qwen2(tokenizer, 0).save_pretrained(tmp_path / "model")  # a KL loads it again

    def make(kind, **config):
        arguments = trl.GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=LONGEST,
            temperature=0.7,
            report_to=[],
            **{"use_bias_correction_kl": False} | config,
        )
        trainer = kind(
            model=AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32),
            reward_funcs=lambda **_: [0.0] * 4,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "1"}] * 4),
            processing_class=tokenizer,
        )
        trainer.current_gradient_accumulation_steps = 2
        trainer.model.train()
        return trainer

    return make


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    mask = (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(3, 10, (4, LONGEST + 3), generator=generator)
    return {
        "prompt_ids": ids[:, :3],
        "prompt_mask": torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1]]),
        "completion_ids": ids[:, 3:],
        "completion_mask": mask,
        "advantages": torch.tensor([1.0, -0.5, 0.3, -1.2]),
        "old_per_token_logps": torch.randn(4, LONGEST, generator=generator) * 0.4 - 2.5,
        "ref_per_token_logps": torch.randn(4, LONGEST, generator=generator) * 0.4 - 2.5,
        "num_items_in_batch": mask.sum() * 3,
    }


@pytest.mark.parametrize(
    ("on_policy", "config"),
    [
        (False, {"loss_type": "grpo", "beta": 0.04, "entropy_coef": 0.01}),
        (False, {"loss_type": "bnpo"}),
        (False, {"loss_type": "dr_grpo"}),
        (False, {"loss_type": "dapo", "epsilon_high": 0.28}),
        (True, {"loss_type": "dapo"}),
        (False, {"loss_type": "cispo", "epsilon_high": 0.6}),
        (False, {"loss_type": "sapo", "sapo_temperature_neg": 2.0}),
        (False, {"loss_type": "vespo", "vespo_k_neg": 2.5, "beta": 0.04}),
        (False, {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
        (False, {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": True, "delta": 1.5, "off_policy_mask_threshold": 0.1}),
    ],
    ids=["grpo", "bnpo", "dr_grpo", "dapo", "dapo-on-policy", "cispo", "sapo", "vespo", "gspo", "deepseek-v3.2"],
)
def test_loss_and_gradients_are_trls(trl_drop_in, make_trainer, batch, on_policy, config):
    if on_policy:
        del batch["old_per_token_logps"]
    found = []
    for kind in (trl.GRPOTrainer, trl_drop_in.FusedGRPOTrainer):
        trainer = make_trainer(kind, **config)
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
        metrics = {name: values[0] for name, values in trainer._metrics["train"].items() if name == "entropy" or "clip" in name}
        found.append((loss.detach(), metrics, gradients))
    theirs, ours = found
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-4)
    clips = not on_policy and config["loss_type"] not in {"sapo", "vespo"}
    assert not clips or any(share > 0.0 for name, share in ours[1].items() if "clip" in name)
    torch.testing.assert_close(ours[2], theirs[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"top_entropy_quantile": 0.5}, "top_entropy_quantile"),
        ({"delta": 1.1}, "delta=1.1"),
        ({"delta": 2.0, "loss_type": "sapo"}, "delta=2.0"),
        ({"importance_sampling_level": "sequence", "beta": 0.1, "use_bias_correction_kl": True}, "use_bias_correction_kl of sequences"),
        ({"importance_sampling_level": "sequence", "loss_type": "sapo"}, 'loss_type="sapo" of sequences'),
    ],
    ids=["quantile", "low-delta", "delta-without-clip", "kl-of-sequences", "sapo-of-sequences"],
)
def test_what_is_not_fused_is_refused(trl_drop_in, make_trainer, batch, config, named):
    trainer = make_trainer(trl_drop_in.FusedGRPOTrainer, **config)
    with pytest.raises(ValueError, match=f"does not compute {named}; use GRPOTrainer for it"):
        trainer.compute_loss(trainer.model, batch)


def test_the_example_trains(trl_drop_in, capsys):
    trl_drop_in.main()
    assert "loss" in capsys.readouterr().out
