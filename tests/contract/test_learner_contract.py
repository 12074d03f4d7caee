"""What the trainer's fold relies on, for every learner. Add one to LEARNERS to hold it to the same."""

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from transformers import LlamaConfig, LlamaForCausalLM

from gradbus.spec import RunSpec
from gradbus_trainer.batch import Batch, TrainSample
from gradbus_trainer.torch_learner import TorchLearner

LEARNERS = {"torch": TorchLearner}
SPEC = RunSpec.model_validate(
    {
        "name": "contract",
        "model": {"path": "m"},
        "data": {"train": "t"},
        "reward": {"service": "grpc://scorer:1"},
        "algorithm": {"entropy": 0.01},
        "schedule": {"steps": 8},
        "trainer": {"learning_rate": 1e-2, "weight_decay": 0.1, "warmup_steps": 2, "lr_schedule": "cosine", "micro_batch_tokens": 40},
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    sizes = {"vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).save_pretrained(path)
    return path


@pytest.fixture(params=sorted(LEARNERS))
def make_learner(request, folder):
    return lambda: LEARNERS[request.param](folder, SPEC)


def batch(step):
    rng = np.random.default_rng(step)
    samples = []
    for n in range(8):
        prompt, response = (rng.integers(0, 19, size).astype(np.int32) for size in (3 + step % 2, 1 + n % 4))
        logprobs = rng.normal(-3.0, 0.2, len(response)).astype(np.float32)
        samples.append(TrainSample(prompt, response, logprobs, np.ones(len(response), bool), float(rng.normal())))
    return Batch(step, samples)


def bits(tensors):
    return {name: (tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in tensors.items()}


def state(learner):
    return bits(learner.weights()), bits(learner.optimizer_tensors())


def trained(learner, steps):
    metrics = [learner.train(batch(step)) for step in steps]
    return metrics, state(learner)


def test_the_same_batches_give_the_same_bits(make_learner):
    assert trained(make_learner(), range(4)) == trained(make_learner(), range(4))


@pytest.mark.parametrize("checkpoint", [0, 1, 3])
def test_a_restored_learner_goes_on_to_the_same_bits(make_learner, checkpoint):
    straight = make_learner()
    trained(straight, range(checkpoint))
    stored = save(dict(straight.weights())), save(dict(straight.optimizer_tensors()))
    resumed = make_learner()
    trained(resumed, range(2))  # state of its own, which restore must replace
    resumed.restore(checkpoint, *(load(blob) for blob in stored))
    assert state(resumed) == state(straight)
    assert trained(resumed, range(checkpoint, 5)) == trained(straight, range(checkpoint, 5))


def test_a_step_moves_every_weight_and_reports_itself(make_learner):
    learner = make_learner()
    before = learner.weights()
    metrics = learner.train(batch(0))
    after = learner.weights()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert (metrics.noop, metrics.tokens) == (False, sum(batch(0).trainable_counts))
    assert metrics.grad_norm > 0.0
    assert metrics.learning_rate == pytest.approx(1e-2 / 3)


def test_a_batch_without_weight_changes_nothing_and_says_so(make_learner):
    learner, other = make_learner(), make_learner()
    trained(learner, [0])
    before = state(learner)
    assert learner.train(Batch(1, [])).noop
    assert state(learner) == before
    trained(other, [0])
    assert trained(learner, [2]) == trained(other, [2])


def test_weights_are_float32_snapshots_under_the_folders_names(make_learner, folder):
    learner = make_learner()
    weights = learner.weights()
    copies = {name: tensor.clone() for name, tensor in weights.items()}
    learner.train(batch(0))
    assert bits(weights) == bits(copies)
    assert bits(weights) == bits(load((folder / "model.safetensors").read_bytes()))
    assert all(tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.requires_grad for tensor in weights.values())


def test_optimiser_state_is_named_by_parameter(make_learner):
    learner = make_learner()
    assert learner.optimizer_tensors() == {}
    learner.train(batch(0))
    expected = {f"{name}.{moment}" for name in learner.weights() for moment in ("exp_avg", "exp_avg_sq", "step")}
    assert learner.optimizer_tensors().keys() == expected


def test_learning_makes_rewarded_tokens_likelier(make_learner):
    """The sign of the whole chain: reward one token, punish another, and watch the ratio of the next batch."""
    learner = make_learner()
    prompt, one = np.array([3, 4], np.int32), np.ones(1, bool)

    def sample(token, advantage):
        return TrainSample(prompt, np.array([token], np.int32), np.array([-3.0], np.float32), one, advantage)

    before = learner.train(Batch(0, [sample(5, 1.0), sample(6, -1.0)])).loss.policy
    after = learner.train(Batch(1, [sample(5, 1.0), sample(6, -1.0)])).loss.policy
    assert after < before
