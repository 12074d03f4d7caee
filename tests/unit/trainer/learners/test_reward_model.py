"""The learner of reward models: its gradient beside transformers', micro-batches, resumes, and a gradient that is no number."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, Qwen2Config, Qwen2ForSequenceClassification

from gradbus.errors import ModelError, TrainingError
from gradbus.spec import parse_spec
from gradbus_trainer.learners.reward_model import RewardModelLearner
from gradbus_trainer.step.batch import Batch

WAYS = {"a token a pass": 1, "some passes": 20, "two passes": 50}


@pytest.fixture(scope="session")
def scorer_folder(tmp_path_factory, model_folder):
    torch.manual_seed(1)
    config = Qwen2Config.from_pretrained(model_folder, num_labels=1, architectures=None)
    folder = tmp_path_factory.mktemp("scorer")
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def learner(scorer_folder):
    def make(center=0.0, **trainer):
        return RewardModelLearner(scorer_folder, make_spec(center, **trainer))

    return make


def make_spec(center=0.0, **trainer):
    trainer = {"learning_rate": 1e-3, "max_grad_norm": 1e9} | trainer
    body = {"name": "scorer", "kind": "reward_model", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 9}}
    return parse_spec(body | {"trainer": trainer, "preference": {"center": center}})


def state(learner):
    return {name: tensor.clone() for part in (learner.weights(), learner.optimizer_tensors()) for name, tensor in part.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gradient(learner, batch):
    """Metrics and gradient of the first step: AdamW's first moment after it is (1 - beta1) · gradient."""
    metrics = learner.train(batch)
    moments = learner.optimizer_tensors().items()
    return metrics, {name.removesuffix(".exp_avg"): tensor / 0.1 for name, tensor in moments if name.endswith(".exp_avg")}


@pytest.mark.parametrize("center", [0.0, 0.3])
def test_loss_and_gradient_are_those_of_transformers(learner, scorer_folder, make_batch, center):
    batch = make_batch()
    model = AutoModelForSequenceClassification.from_pretrained(scorer_folder).eval()
    ids = [torch.from_numpy(np.concatenate((sample.prompt_ids, sample.token_ids))).long()[None] for sample in batch.samples]
    scores = torch.cat([model(one).logits[0] for one in ids])
    chosen, rejected = scores.view(-1, 2).unbind(1)
    loss = (torch.nn.functional.softplus(rejected - chosen) + center * (chosen + rejected) ** 2).mean()
    loss.backward()
    metrics, found = gradient(learner(center), batch)
    assert metrics.loss.total == pytest.approx(loss.item(), rel=1e-5)
    assert metrics.preference.chosen == pytest.approx(chosen.mean().item(), rel=1e-4)
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_micro_batches_have_the_gradient_of_one_pass(learner, make_batch, way, checkpointing):
    whole, expected = gradient(learner(0.1), make_batch())
    split, found = gradient(learner(0.1, micro_batch_tokens=WAYS[way], gradient_checkpointing=checkpointing), make_batch())
    assert split.loss.total == pytest.approx(whole.loss.total, rel=1e-6)
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert split.preference.accuracy == whole.preference.accuracy
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("budget", [16384, 20])
def test_a_resume_ends_in_the_same_bits(learner, make_batch, budget):
    straight, resumed = (learner(0.1, micro_batch_tokens=budget) for _ in range(2))
    for step in range(4):
        if step == 2:
            saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors())]
        straight.train(make_batch(step, seed=step))
    resumed.restore(2, *saved)
    with pytest.raises(TrainingError, match="step 1 is behind"):
        resumed.train(make_batch(1))
    for step in range(2, 4):
        resumed.train(make_batch(step, seed=step))
    assert same(state(straight), state(resumed))


def test_memory_given_back_in_between_changes_no_bit(learner, make_batch):
    straight, turns = learner(), learner()
    for step in range(3):
        straight.train(make_batch(step, seed=step))
        turns.train(make_batch(step, seed=step))
        turns.release()
        turns.resume()
    assert same(state(straight), state(turns))


@pytest.mark.parametrize("budget", [16384, 20])
def test_a_gradient_that_is_no_number_changes_nothing(learner, make_batch, budget):
    one, clean = (learner(micro_batch_tokens=budget) for _ in range(2))
    for each in (one, clean):
        each.train(make_batch(0))
    good = {name: tensor.clone() for name, tensor in one.weights().items()}
    moments = {name: tensor.clone() for name, tensor in one.optimizer_tensors().items()}
    one.restore(1, good | {"score.weight": torch.full_like(good["score.weight"], 3e38)}, moments)
    before = state(one)
    with pytest.raises(TrainingError, match="step 1 is not finite"):
        one.train(make_batch(1))
    assert same(state(one), before)
    one.restore(1, good, moments)
    assert one.train(make_batch(1)).loss == clean.train(make_batch(1)).loss
    assert same(state(one), state(clean))


def test_a_step_without_pairs_makes_no_update(learner):
    one = learner()
    before = state(one)
    assert one.train(Batch(0, [])).noop
    assert same(state(one), before)


def test_state_of_another_model_is_refused_and_changes_nothing(learner):
    one = learner()
    before = state(one)
    with pytest.raises(ModelError, match="another model"):
        one.restore(1, one.weights(), {"elsewhere.exp_avg": torch.zeros(1)})
    assert same(state(one), before)


def test_no_engine_samples_so_there_is_nothing_to_probe(learner):
    with pytest.raises(TrainingError, match="no log-probabilities"):
        learner().probe()
