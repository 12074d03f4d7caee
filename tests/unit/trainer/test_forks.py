"""A step of samples of several sequences: a fork changes neither loss nor gradient, and no sample's weight."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch, Origin, by_sample

VARIANTS = {
    "grpo": {"entropy": 0.01, "kl": 0.1},
    "sequences": {"aggregate": "sequence", "kl": 0.1},
    "dr_grpo": {"aggregate": "constant"},
    "gspo": {"name": "gspo"},
    "rloo": {"name": "rloo", "kl": 0.0},
    "vespo": {"name": "vespo"},
    "masks": {"sequence_mask": (0.5, 2.0), "off_policy_mask": 0.2},
}


def first_step(folder, spec, batch):
    """Metrics and gradients: AdamW's first moment after one unclipped step is (1 - beta1) · gradient."""
    learner = TorchLearner(folder, spec)
    metrics = learner.train(batch)
    moments = learner.optimizer_tensors().items()
    return metrics, {name: tensor / (1.0 - spec.trainer.betas[0]) for name, tensor in moments if name.endswith(".exp_avg")}


def assert_same(one, other):
    assert one[0].loss.total == pytest.approx(other[0].loss.total, abs=1e-6)
    assert (one[0].tokens, one[0].ratio.clipped_low) == (other[0].tokens, pytest.approx(other[0].ratio.clipped_low))
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_fork_changes_neither_loss_nor_gradient(model_folder, make_spec, make_batch, variant, split):
    batch = make_batch()
    batch = Batch(0, [replace(row, behaviour_logprobs=row.behaviour_logprobs * 0.9) for row in batch.samples])
    rows = split(batch.samples)
    expected = first_step(model_folder, make_spec(algorithm=VARIANTS[variant]), batch)
    assert_same(first_step(model_folder, make_spec(algorithm=VARIANTS[variant]), Batch(0, rows)), expected)
    packed = make_spec(algorithm=VARIANTS[variant], trainer={"micro_batch_tokens": 15})
    turned = [row for sample in by_sample(rows) for row in reversed(sample)]
    assert_same(first_step(model_folder, packed, Batch(0, turned)), expected)


def test_the_loss_is_the_mean_over_episodes_of_the_mean_over_all_their_tokens(model_folder, make_spec, make_batch):
    """By hand in float64: sequences of an episode that share nothing, the first samples being one episode of 5, one of 2, and so on."""
    samples, of = make_batch().samples, [5, 2, 1, 4]
    origins = iter([Origin(0, n) for n, count in enumerate(of) for _ in range(count)])
    episodes = Batch(0, [replace(row, origin=next(origins)) for row in samples])
    found, _ = first_step(
        model_folder, make_spec(algorithm={"aggregate": "sequence", "importance": "none", "trust_region": "none", "clip": None}), episodes
    )
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64)
    means = []
    for rows in by_sample(episodes.samples):
        gains = []
        for row in rows:
            ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()
            logits = model(ids[None]).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
            chosen = logits[torch.arange(len(row.token_ids)), ids[len(row.prompt_ids) :]].detach().numpy()
            gains += (row.advantages.astype(np.float64) * chosen)[row.trainable].tolist()
        means.append(sum(gains) / len(gains))
    assert [len(rows) for rows in by_sample(episodes.samples)] == of
    assert found.loss.total == pytest.approx(-sum(means) / 4, abs=1e-6)


def test_an_episode_weighs_as_one_sample_whatever_its_sequences(make_spec, make_batch, split):
    samples = make_batch(all_trainable=True).samples
    spec = make_spec(algorithm={"aggregate": "sequence"})
    for most in (1, 2, 3, 6):
        batch = Batch(0, split(samples, most))
        shares = zip(by_sample(batch.samples), _by_sample(batch, batch.row_weights(spec)), strict=True)
        totals = [sum(weight * row.trainable.sum() for row, weight in zip(rows, weights, strict=True)) for rows, weights in shares]
        assert totals == pytest.approx([1 / 12] * 12, rel=1e-12)


def _by_sample(batch, values):
    found = iter(values)
    return [[next(found) for _ in rows] for rows in by_sample(batch.samples)]


@pytest.mark.parametrize("algorithm", [{"importance": "decoupled"}, {"name": "m2po", "second_moment": 0.01}])
def test_several_updates_of_a_step_are_the_same(model_folder, make_spec, make_batch, algorithm, split):
    learners = [TorchLearner(model_folder, make_spec(algorithm=algorithm, trainer={"inner": {"minibatches": 3}})) for _ in range(2)]
    found = [
        learner.train(Batch(0, rows)) for learner, rows in zip(learners, (split(make_batch().samples), make_batch().samples), strict=True)
    ]
    assert found[0].updates == found[1].updates == 3
    assert found[0].loss.total == pytest.approx(found[1].loss.total, abs=1e-5)
    for name, tensor in learners[0].weights().items():
        torch.testing.assert_close(tensor, learners[1].weights()[name], rtol=0, atol=2e-4)
