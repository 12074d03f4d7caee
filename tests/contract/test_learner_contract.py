"""What the trainer's fold relies on, for every learner. Add one to LEARNERS to hold it to the same."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from learner_lab import SPEC, batch, deepspeed_spec, make_model
from safetensors.torch import load, save

from gradbus.errors import ModelError, TrainingError
from gradbus_trainer.batch import Batch, TrainSample
from gradbus_trainer.launch import Launch
from gradbus_trainer.torch_learner import TorchLearner


@cache
def ranks():
    from gradbus_trainer.deepspeed_learner.ranks import Ranks

    return Ranks(Launch(), "cpu", 60.0)


def deepspeed_learner(folder, _, **settings):
    """One rank, in this process."""
    pytest.importorskip("deepspeed")
    from gradbus_trainer.deepspeed_learner.leader import Leader
    from gradbus_trainer.deepspeed_learner.learner import DeepSpeedLearner

    return DeepSpeedLearner(folder, deepspeed_spec(**settings), Leader(ranks(), 60.0))


LEARNERS = {"torch": TorchLearner}
DEEPSPEED = {f"deepspeed-{stage}": partial(deepspeed_learner, zero_stage=stage) for stage in range(4)}
DEEPSPEED["deepspeed-2-offload"] = partial(deepspeed_learner, zero_stage=2, offload="optimizer")
DEEPSPEED["deepspeed-3-checkpointing"] = partial(deepspeed_learner, zero_stage=3, gradient_checkpointing=True)
BF16 = {f"deepspeed-{stage}-bf16": partial(deepspeed_learner, zero_stage=stage, dtype="bf16") for stage in (1, 2, 3)}
ALL = LEARNERS | DEEPSPEED | BF16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def marked(names):
    return [pytest.param(name, marks=[] if name in LEARNERS else pytest.mark.engines) for name in sorted(names)]


@pytest.fixture(params=marked(ALL))
def make_learner(request, folder):
    return lambda: ALL[request.param](folder, SPEC)


@pytest.fixture(params=marked(DEEPSPEED))
def make_other(request, folder):
    """Learners that compute what the torch learner does, up to rounding."""
    return lambda: DEEPSPEED[request.param](folder, SPEC)


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


def test_a_gradient_that_is_not_finite_changes_nothing(make_learner):
    learner, clean = make_learner(), make_learner()
    trained(learner, [0])
    before = state(learner)
    poison = [TrainSample(np.array([3], np.int32), np.array([4], np.int32), np.zeros(1, np.float32), np.ones(1, bool), float("nan"))]
    with pytest.raises(TrainingError, match="step 1 is not finite"):
        learner.train(Batch(1, poison))
    assert state(learner) == before
    trained(clean, [0])
    assert trained(learner, [1]) == trained(clean, [1])


def test_a_step_behind_the_restored_one_is_refused(make_learner):
    learner = make_learner()
    learner.restore(5, learner.weights(), {})
    with pytest.raises(TrainingError, match="step 4 is behind"):
        learner.train(batch(4))


def test_the_state_of_another_model_is_refused(make_learner):
    learner = make_learner()
    weights = dict(learner.weights())
    with pytest.raises(ModelError, match="another model"):
        learner.restore(1, weights, {"elsewhere.exp_avg": torch.zeros(1)})
    name, tensor = weights.popitem()
    with pytest.raises(ModelError, match="another model"):
        learner.restore(1, weights, {})
    with pytest.raises(ModelError, match=f"{name}.*start from the run's own model"):
        learner.restore(1, weights | {name: torch.zeros(*tensor.shape, 2)}, {})


def assert_alike(tensors, others):
    """Relative to each tensor's size: sums over tokens and ranks are taken in another order, and AdamW divides by small numbers."""
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        scale = float(others[name].abs().max())
        torch.testing.assert_close(tensor, others[name], rtol=0.0, atol=2e-5 * scale, msg=lambda text, name=name: f"{name}: {text}")


def assert_same_steps(metrics, others):
    for one, other in zip(metrics, others, strict=True):
        assert (one.noop, one.tokens, one.learning_rate) == (other.noop, other.tokens, other.learning_rate)
        shown, expected = ([m.grad_norm, *vars_of(m.loss), *vars_of(m.ratio)] for m in (one, other))
        assert shown == pytest.approx(expected, rel=2e-5, abs=2e-6)


def vars_of(part):
    return [getattr(part, name) for name in part.__slots__]


def test_loss_gradients_and_weights_are_the_torch_learners(make_other, folder):
    """The moments are the gradients' means, so these tell them apart too."""
    other, plain = make_other(), TorchLearner(folder, SPEC)
    metrics, expected = ([learner.train(batch(step)) for step in range(5)] for learner in (other, plain))
    assert_same_steps(metrics, expected)
    assert_alike(other.weights(), plain.weights())
    assert_alike(other.optimizer_tensors(), plain.optimizer_tensors())


@pytest.mark.parametrize("forth", [True, False], ids=["from torch", "to torch"])
def test_a_checkpoint_goes_from_one_learner_to_another(make_other, folder, forth):
    source, target = (TorchLearner(folder, SPEC), make_other()) if forth else (make_other(), TorchLearner(folder, SPEC))
    trained(source, range(3))
    target.restore(3, source.weights(), source.optimizer_tensors())
    assert state(target) == state(source), "the same bits"
    assert_same_steps([target.train(batch(3))], [source.train(batch(3))])
    assert_alike(target.weights(), source.weights())
