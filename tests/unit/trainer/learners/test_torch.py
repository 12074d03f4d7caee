"""One step of plain-torch GRPO, seen through the learner's own interface."""

import subprocess
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from gradbus.errors import ModelError, TrainingError
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.operators import provenance
from gradbus_trainer.learners.optimizer import AdamW
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch


def first_step(folder, spec, batch):
    """Metrics and gradients: AdamW's first moment after one unclipped step is (1 - beta1) · gradient."""
    learner = TorchLearner(folder, spec)
    metrics = learner.train(batch)
    scale = 1.0 - spec.trainer.betas[0]
    moments = learner.optimizer_tensors().items()
    return metrics, {name.removesuffix(".exp_avg"): tensor / scale for name, tensor in moments if name.endswith(".exp_avg")}


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
@pytest.mark.parametrize("budget", [1, 30])
def test_micro_batches_change_neither_loss_nor_gradient(model_folder, make_spec, make_batch, aggregate, budget):
    algorithm = {"aggregate": aggregate, "entropy": 0.01, "kl": 0.1}
    whole, gradients = first_step(model_folder, make_spec(algorithm=algorithm), make_batch())
    spec = make_spec(algorithm=algorithm, trainer={"micro_batch_tokens": budget})
    split, split_gradients = first_step(model_folder, spec, make_batch())
    assert split.loss.total == pytest.approx(whole.loss.total, rel=1e-5, abs=1e-6)
    assert split.ratio.mean == pytest.approx(whole.ratio.mean, rel=1e-5)
    assert split.ratio.max == pytest.approx(whole.ratio.max, rel=1e-5)
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert_same(split_gradients, gradients)


def test_tokens_that_are_not_trainable_leave_numerator_and_denominator(model_folder, make_spec, make_batch):
    batch = make_batch()
    spec = make_spec(algorithm={"entropy": 0.01, "kl": 0.1})
    metrics, gradients = first_step(model_folder, spec, batch)
    spoilt = [
        replace(sample, behaviour_logprobs=np.where(sample.trainable, sample.behaviour_logprobs, np.float32("nan")))
        for sample in batch.samples
    ]
    again, same_gradients = first_step(model_folder, spec, Batch(0, spoilt))
    assert metrics == again
    assert metrics.tokens == sum(batch.trainable_counts) < sum(len(sample.token_ids) for sample in batch.samples)
    assert all(torch.equal(gradients[name], same_gradients[name]) for name in gradients)


def test_a_sample_without_trainable_tokens_changes_nothing_but_context(model_folder, make_spec, make_batch):
    batch = make_batch()
    idle = replace(
        batch.samples[0], trainable=np.zeros_like(batch.samples[0].trainable), advantages=np.full_like(batch.samples[0].advantages, 9.0)
    )
    with_idle = first_step(model_folder, make_spec(algorithm={"aggregate": "sequence"}), Batch(0, [*batch.samples, idle]))
    without = first_step(model_folder, make_spec(algorithm={"aggregate": "sequence"}), batch)
    assert with_idle[0].loss.total == pytest.approx(without[0].loss.total, rel=1e-5)
    assert_same(with_idle[1], without[1])


def test_samples_of_the_present_policy_have_ratio_one_and_decoupled_agrees_with_behaviour(model_folder, make_spec, make_batch):
    batch = make_batch()
    with torch.no_grad():
        logprobs, _ = packed_logprobs(load_causal_lm(model_folder), batch.samples, 0.8)
    parts = logprobs.split([len(sample.token_ids) for sample in batch.samples])
    fresh = Batch(0, [replace(sample, behaviour_logprobs=part.numpy()) for sample, part in zip(batch.samples, parts, strict=True)])
    results = [
        first_step(model_folder, make_spec(rollout={"temperature": 0.8}, algorithm={"importance": importance}), fresh)
        for importance in ("behaviour", "decoupled")
    ]
    assert_same(results[0][1], results[1][1])
    ratio = results[0][0].ratio
    assert (ratio.mean, ratio.max) == (pytest.approx(1.0, abs=1e-5), pytest.approx(1.0, abs=1e-5))
    assert (ratio.clipped_low, ratio.clipped_high) == (0.0, 0.0)
    assert ratio.logprob_diff == pytest.approx(0.0, abs=1e-5)


def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_shown(model_folder, make_spec, make_batch):
    free, gradients = first_step(model_folder, make_spec(), make_batch())
    clipped, small = first_step(model_folder, make_spec(trainer={"max_grad_norm": free.grad_norm / 4}), make_batch())
    assert clipped.grad_norm == free.grad_norm
    assert_same({name: tensor * 4 for name, tensor in small.items()}, gradients)


@pytest.mark.parametrize("step", [0, 2, 9])
def test_weights_move_by_the_steps_learning_rate(model_folder, make_spec, make_batch, step):
    """AdamW's first step moves a weight by rate · sign(gradient) wherever the gradient is well above epsilon."""
    learner = TorchLearner(model_folder, make_spec(trainer={"warmup_steps": 3, "lr_schedule": "linear"}))
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    rate = learner.train(make_batch(step)).learning_rate
    moved = max(float((tensor - before[name]).abs().max()) for name, tensor in learner.weights().items())
    assert moved == pytest.approx(rate, rel=1e-2)


def test_a_gradient_that_is_not_finite_changes_nothing(model_folder, make_spec, make_batch):
    batch = make_batch()
    poisoned = Batch(0, [replace(sample, advantages=np.full_like(sample.advantages, np.nan)) for sample in batch.samples])
    learner, clean = (TorchLearner(model_folder, make_spec()) for _ in range(2))
    with pytest.raises(TrainingError, match="step 0 is not finite"):
        learner.train(poisoned)
    assert learner.optimizer_tensors() == {}
    assert learner.train(batch) == clean.train(batch)
    assert all(torch.equal(tensor, clean.weights()[name]) for name, tensor in learner.weights().items())


@pytest.mark.parametrize("algorithm", [{}, {"kl": 0.05, "entropy": 0.003, "importance": "decoupled"}])
def test_the_reference_can_be_forced_and_agrees(model_folder, make_spec, make_batch, monkeypatch, algorithm):
    spec, found = make_spec(algorithm=algorithm), {}
    for asked in ("", "reference"):
        monkeypatch.setenv("GRADBUS_KERNELS", asked)
        learner = TorchLearner(model_folder, spec)
        metrics = learner.train(make_batch())
        assert provenance()["linear_grpo_loss"].implementation == (asked or "cpu")
        found[asked] = ([*astuple(metrics.loss), *astuple(metrics.ratio), metrics.grad_norm], learner.weights())
    assert found[""][0] == pytest.approx(found["reference"][0], rel=1e-4, abs=1e-6)
    for name, tensor in found[""][1].items():
        torch.testing.assert_close(tensor, found["reference"][1][name], rtol=0.0, atol=1e-5)


def test_a_step_behind_the_restored_one_is_refused(model_folder, make_spec, make_batch):
    learner = TorchLearner(model_folder, make_spec())
    learner.restore(5, learner.weights(), {})
    with pytest.raises(TrainingError, match="step 4 is behind"):
        learner.train(make_batch(step=4))


def test_optimiser_state_of_another_model_is_refused(model_folder, make_spec):
    learner = TorchLearner(model_folder, make_spec())
    with pytest.raises(ModelError, match="another model"):
        learner.restore(1, learner.weights(), {"elsewhere.exp_avg": torch.zeros(1)})


def test_optimiser_steps_are_those_of_torchs_adamw(model_folder, make_spec):
    spec = make_spec(trainer={"weight_decay": 0.1})
    ours, theirs = ({name: torch.nn.Parameter(torch.linspace(-1, 1, 7)) for name in ("one", "two")} for _ in range(2))
    optimizer = AdamW(ours, spec.trainer)
    expected = torch.optim.AdamW(theirs.values(), betas=spec.trainer.betas, eps=1e-8, weight_decay=0.1, fused=True)
    for rate in (1e-2, 3e-3, 0.0):
        for name, parameter in [*ours.items(), *theirs.items()]:
            parameter.grad = torch.sin(parameter.detach() * len(name) + rate)
        optimizer.step(rate)
        expected.param_groups[0]["lr"] = rate
        expected.step()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    state = {f"{name}.{moment}": expected.state[theirs[name]][moment] for name in theirs for moment in ("exp_avg", "exp_avg_sq", "step")}
    assert optimizer.tensors().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in optimizer.tensors().items())


STEP = """
import sys
from pathlib import Path
import numpy as np
import gradbus_reference.service, gradbus_trainer.service
from gradbus.spec import RunSpec
from gradbus_reference.model import ReferenceModel
from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.learners.torch import TorchLearner
ids, ones = np.array([2, 3], np.int32), np.ones(2, np.float32)
sample = TrainSample(ids, ids, -ones, ones > 0, ones, -ones)
for spec in sys.argv[2:]:
    learner = TorchLearner(Path(sys.argv[1]), RunSpec.model_validate_json(spec))
    assert learner.train(Batch(0, [sample])).tokens == 2
ReferenceModel(Path(sys.argv[1])).logprobs([sample], 1.0)
print(*sorted({"transformers", "peft", "torch._dynamo"} & set(sys.modules)))
"""


def test_neither_a_step_nor_a_score_imports_transformers_or_torchs_compiler(model_folder, make_spec):
    specs = [make_spec(), make_spec(algorithm={"kl": 0.1}, trainer={"lora": {}})]
    command = [sys.executable, "-c", STEP, str(model_folder), *(spec.model_dump_json() for spec in specs)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == ""
