"""The bound of the second moment in the plain learner: a loss over the chosen tokens in float64, whatever the cut and the threads."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_trainer.learners.policy_step import anchored
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch

M2PO = {"name": "m2po", "second_moment": 0.3}


@pytest.fixture
def learner(make_spec, model_folder):
    def make(algorithm=M2PO, **trainer):
        return TorchLearner(model_folder, make_spec(algorithm=algorithm, trainer=trainer))

    return make


def stale(learner, batch, spread=0.8):
    """The batch as an older policy would have sampled it: log-probabilities around the learner's, some of them far away."""
    random = np.random.default_rng(7)
    with_anchor = anchored(batch, learner._present_logprobs(batch)).samples
    return Batch(
        batch.step,
        [
            replace(
                sample,
                behaviour_logprobs=(sample.proximal_logprobs + spread * random.normal(size=len(sample.token_ids))).astype(np.float32),
                proximal_logprobs=None,
            )
            for sample in with_anchor
        ],
    )


def same(one, other):
    return all(torch.equal(tensor, other.weights()[name]) for name, tensor in one.weights().items())


def test_loss_and_outliers_are_those_of_a_loop_in_float64(learner, make_batch, model_folder):
    trained = learner()
    batch = stale(trained, make_batch())
    found = trained.train(batch)
    model = load_causal_lm(model_folder, torch.float64)
    with torch.no_grad():
        logprobs = packed_logprobs(model, batch.samples, 1.0)[0].double().tolist()
    columns = [part for one in batch.samples for part in zip(one.behaviour_logprobs, one.advantages, one.trainable, strict=True)]
    rows = [(now - float(mu), float(a)) for now, (mu, a, counts) in zip(logprobs, columns, strict=True) if counts]
    rest = sorted(ratio**2 for ratio, _ in rows)
    while sum(rest) / len(rest) >= 0.3:
        rest.pop()
    policy = -sum(np.exp(ratio) * advantage for ratio, advantage in rows if ratio**2 <= rest[-1]) / len(rows)
    assert 0 < len(rest) < len(rows)
    assert found.ratio.outliers == pytest.approx(1.0 - len(rest) / len(rows))
    assert found.loss.policy == pytest.approx(policy, rel=1e-5, abs=1e-6)


def test_micro_batches_and_threads_change_nothing_but_the_order_of_sums(learner, make_batch):
    whole, pieces, threads = learner(), learner(micro_batch_tokens=12), learner(threads=2)
    batch = stale(whole, make_batch())
    metrics = [one.train(batch) for one in (whole, pieces, threads)]
    for other in metrics[1:]:
        assert other.ratio.outliers == metrics[0].ratio.outliers > 0.0
        assert other.loss.policy == pytest.approx(metrics[0].loss.policy, rel=1e-6, abs=1e-7)
        assert other.grad_norm == pytest.approx(metrics[0].grad_norm, rel=1e-5)


def test_samples_of_the_policy_itself_lose_no_token(learner, make_batch):
    bounded, plain = learner(), learner({"trust_region": "none"})
    batch = stale(plain, make_batch(), spread=0.0)
    found, expected = bounded.train(batch), plain.train(batch)
    assert found == expected
    assert same(bounded, plain)


def test_every_update_of_a_step_has_the_choice_of_its_first(learner, make_batch):
    """A minibatch's outliers are those of the whole step, and the policy before it decides."""
    inner = {"epochs": 2, "minibatches": 3}
    one = learner(M2PO | {"trust_region": "clip"}, inner=inner)
    found = one.train(stale(one, make_batch()))
    whole = learner(M2PO | {"trust_region": "clip"})
    assert found.updates == 6
    assert found.ratio.outliers == whole.train(stale(whole, make_batch())).ratio.outliers > 0.0


def test_a_step_with_dropped_tokens_is_the_step_without_their_advantages(learner, make_batch):
    bounded, plain = learner(), learner({"trust_region": "none"})
    batch = stale(plain, make_batch())
    moments = [
        np.square(one.proximal_logprobs.astype(np.float64) - one.behaviour_logprobs)[one.trainable]
        for one in anchored(batch, bounded._present_logprobs(batch)).samples
    ]
    found = bounded.train(batch)
    ordered = np.sort(np.concatenate(moments))[::-1]
    bound = ordered[round(found.ratio.outliers * len(ordered)) - 1]
    zeroed = [
        replace(
            one, advantages=np.where(np.square(of.proximal_logprobs.astype(float) - one.behaviour_logprobs) >= bound, 0, one.advantages)
        )
        for one, of in zip(batch.samples, anchored(batch, plain._present_logprobs(batch)).samples, strict=True)
    ]
    plain.train(Batch(0, zeroed))
    assert same(bounded, plain)
