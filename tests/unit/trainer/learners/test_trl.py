"""The same batch through TRL's GRPOTrainer: loss, gradient norm and every gradient agree.

TRL's loss_type "dapo" is our aggregate "token"; its KL is our plain k3 once `use_bias_correction_kl` is off.
Tolerances are those of float32 sums in another order: 1e-5 of the loss and 1e-4 of a gradient, or 1e-6 absolute.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch

TEMPERATURE = 0.8


def trl_trainer(model_folder, output, algorithm):
    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(23)}, unk_token="w2"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
    config = trl.GRPOConfig(
        output_dir=str(output),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=12,
        num_generations=4,
        loss_type="dapo",
        epsilon=algorithm["clip"][0],
        epsilon_high=algorithm["clip"][1],
        beta=algorithm["kl"],
        use_bias_correction_kl=False,
        entropy_coef=algorithm["entropy"],
        temperature=TEMPERATURE,
        report_to=[],
    )
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    prompts = Dataset.from_list([{"prompt": "w3"}] * 12)
    trainer = trl.GRPOTrainer(
        model=model, reward_funcs=lambda **_: [0.0] * 12, args=config, train_dataset=prompts, processing_class=tokenizer
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def padded(rows, dtype, left=False):
    """[B, longest], zeros where a row is shorter."""
    width = max(len(row) for row in rows)
    table = np.zeros((len(rows), width))
    for line, row in zip(table, rows, strict=True):
        line[slice(width - len(row), None) if left else slice(len(row))] = row
    return torch.from_numpy(table).to(dtype)


def trl_inputs(samples):
    prompts, responses = [sample.prompt_ids for sample in samples], [sample.token_ids for sample in samples]
    return {
        "prompt_ids": padded(prompts, torch.long, left=True),
        "prompt_mask": padded([np.ones(len(ids)) for ids in prompts], torch.long, left=True),
        "completion_ids": padded(responses, torch.long),
        "completion_mask": padded([np.ones(len(ids)) for ids in responses], torch.long),
        "tool_mask": padded([sample.trainable for sample in samples], torch.long),
        "advantages": torch.tensor([float(sample.advantages[0]) for sample in samples]),
        "old_per_token_logps": padded([sample.behaviour_logprobs for sample in samples], torch.float32),
        "ref_per_token_logps": padded([sample.reference_logprobs for sample in samples], torch.float32),
        "num_items_in_batch": torch.tensor(float(sum(sample.trainable.sum() for sample in samples))),
    }


@pytest.mark.parametrize("kl", [0.0, 0.05])
@pytest.mark.parametrize("all_trainable", [True, False], ids=["plain", "tool-mask"])
def test_loss_and_gradients_equal_trls(model_folder, make_spec, make_batch, tmp_path, kl, all_trainable):
    algorithm = {"clip": (0.2, 0.28), "kl": kl, "entropy": 0.003, "filter": "none"}
    samples = make_batch(seed=3, all_trainable=all_trainable).samples
    # TRL divides by each sequence's own mask when it logs: give every one a trainable token.
    samples = [replace(sample, trainable=sample.trainable | (np.arange(len(sample.trainable)) == 0)) for sample in samples]
    spec = make_spec(algorithm=algorithm, rollout={"temperature": TEMPERATURE})

    trainer = trl_trainer(model_folder, tmp_path, algorithm)
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, trl_inputs(samples))
    loss.backward()

    learner = TorchLearner(model_folder, spec)
    metrics = learner.train(Batch(0, samples))
    assert metrics.loss.total == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    theirs = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    moments = learner.optimizer_tensors()
    # Without clipping, AdamW's first moment after the first step is (1 - beta1) · gradient.
    ours = {name: moments[f"{name}.exp_avg"] / (1.0 - spec.trainer.betas[0]) for name in theirs}
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert metrics.grad_norm == pytest.approx(float(torch.stack([grad.norm() for grad in theirs.values()]).norm()), rel=1e-4)
