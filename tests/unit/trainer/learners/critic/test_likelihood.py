"""The likelihood of the best samples, beside a critic: a mean over the whole step, whatever the micro-batches."""

from dataclasses import replace

import pytest
import torch

from gradbus.algorithms import SampleMarks
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_trainer.step.batch import Batch

from .conftest import same, state


@pytest.fixture
def imitating(rewarded):
    """A batch of which the samples with a reward are the best of their groups."""

    def make(step=0, **made):
        batch = rewarded(step, **made)
        return Batch(step, [replace(sample, marks=SampleMarks(best=bool(sample.advantages[0] > 0.0))) for sample in batch.samples])

    return make


def test_the_likelihood_term_is_a_mean_over_the_tokens_of_the_best_samples_of_the_whole_step(ppo, imitating, model_folder):
    """In float64, and whatever the micro-batches: of which some have no such sample."""
    batch = imitating(seed=4)
    model = load_causal_lm(model_folder, torch.float64)
    with torch.no_grad():
        parts = packed_logprobs(model, batch.samples, 1.0)[0].double().split([len(sample.token_ids) for sample in batch.samples])
    chosen = [part[torch.from_numpy(s.trainable.copy())] for part, s in zip(parts, batch.samples, strict=True) if s.marks.best]
    expected = -torch.cat(chosen).mean().item()
    found = [ppo(trainer, {"nll": 0.1}).train(batch) for trainer in ({}, {"micro_batch_tokens": 12}, {"threads": 2})]
    plain = ppo().train(batch)
    for metrics in found:
        assert metrics.loss.nll == pytest.approx(expected, rel=1e-5)
        assert metrics.loss.total == pytest.approx(metrics.loss.policy + 0.1 * expected, rel=1e-5)
        assert metrics.grad_norm == pytest.approx(found[0].grad_norm, rel=1e-4)
        assert metrics.loss.policy == pytest.approx(plain.loss.policy, abs=1e-6)
    assert plain.loss.nll == 0.0
    assert plain.grad_norm != pytest.approx(found[0].grad_norm, rel=1e-3)


def test_a_step_without_a_best_sample_has_no_likelihood_term(ppo, rewarded):
    with_term, without = ppo(algorithm={"nll": 0.1}), ppo()
    assert with_term.train(rewarded()) == without.train(rewarded())
    assert same(state(with_term), state(without))
