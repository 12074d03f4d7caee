"""The learner with score centring: the gradient of a plain loop, micro-batches, threads, adapters, sequences, and what it reports."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gradbus_kernels.models.causal_lm import head_inputs, load_causal_lm
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch

COUNT, TEMPERATURE = 5, 0.7


@pytest.fixture
def drawn(model_folder, make_batch):
    """A batch with the rows of a policy near the model, from which its tokens' log-probabilities are too."""

    def make(step=0, seed=0):
        rng, model, samples = np.random.default_rng(seed), load_causal_lm(model_folder), []
        for sample in make_batch(step, seed).samples:
            hidden, head, ids = (part.detach() for part in head_inputs(model, [sample]))
            logits = (hidden @ head.T).double() + torch.from_numpy(rng.normal(0.0, 0.3, (len(hidden), len(head))))
            table = (logits / TEMPERATURE).log_softmax(-1)
            values, tokens = table.topk(COUNT)
            rest = table.scatter(1, tokens, -torch.inf).logsumexp(1, keepdim=True)
            rows = tokens.numpy().astype(np.int32), torch.cat((values, rest), 1).numpy().astype(np.float32)
            behaviour = table.gather(1, ids[:, None])[:, 0].numpy().astype(np.float32)
            samples.append(replace(sample, reference_logprobs=None, behaviour_logprobs=behaviour, behaviour_rows=rows))
        return Batch(step, samples)

    return make


@pytest.fixture
def centred_spec(make_spec):
    def make(trainer=None, **algorithm):
        chosen = {"name": "score_centering", "centering": COUNT} | algorithm
        return make_spec(algorithm=chosen, rollout={"temperature": TEMPERATURE}, trainer=trainer or {})

    return make


def moments(learner):
    """Gradients: AdamW's first moment after one unclipped step is (1 - beta1) · gradient."""
    found = {name: tensor / 0.1 for name, tensor in learner.optimizer_tensors().items() if name.endswith(".exp_avg")}
    return {name.removesuffix(".exp_avg"): tensor for name, tensor in found.items()}


def plain(folder, batch, weigh):
    """Gradients and the distance of the policies by autograd through whole rows of logits, in float64 from the head on."""
    model, total, distance = load_causal_lm(folder), 0.0, 0.0
    count = sum(batch.trainable_counts)
    for sample in batch.samples:
        hidden, head, ids = head_inputs(model, [sample])
        every = (hidden @ head.T / TEMPERATURE).double().log_softmax(-1)
        for t in np.nonzero(sample.trainable)[0]:
            tokens, (*q, q_rest) = sample.behaviour_rows[0][t].tolist(), np.exp(sample.behaviour_rows[1][t].astype(np.float64)).tolist()
            p = [every[t, v].exp().item() for v in tokens]
            p_rest = sum(every[t, v].exp().item() for v in range(len(head)) if v not in tokens)
            kappa = q_rest / p_rest
            own = every[t, ids[t]]
            gain = weigh(math.exp(own.item() - float(sample.behaviour_logprobs[t]))) * own
            for at, v in enumerate(tokens):
                gain = gain - (q[at] * weigh(p[at] / q[at]) - kappa * weigh(1.0 / kappa) * p[at]) * every[t, v]
            total = total - float(sample.advantages[t]) * gain / count
            distance += (sum(abs(a - b) for a, b in zip(p, q, strict=True)) + abs(p_rest - q_rest)) / 2 / count
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, distance


@pytest.mark.parametrize(
    ("algorithm", "weigh"),
    [
        ({"clip": [1.0, 0.1]}, lambda ratio: min(ratio, 1.1)),
        ({"trust_region": "band", "clip": [0.2, 0.3]}, lambda ratio: ratio if 0.8 <= ratio <= 1.3 else 0.0),
        ({"trust_region": "none", "importance": "none"}, lambda _: 1.0),
    ],
    ids=["cap", "band", "none"],
)
def test_gradient_and_distance_are_those_of_a_plain_loop(model_folder, centred_spec, drawn, algorithm, weigh):
    batch, learner = drawn(), TorchLearner(model_folder, centred_spec(**algorithm))
    metrics = learner.train(batch)
    gradients, distance = plain(model_folder, batch, weigh)
    assert metrics.ratio.total_variation == pytest.approx(distance, rel=1e-4)
    assert distance > 0.02
    found = moments(learner)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("trainer", [{"micro_batch_tokens": 1}, {"micro_batch_tokens": 30}, {"threads": 2}])
def test_micro_batches_and_threads_change_nothing_but_rounding(model_folder, centred_spec, drawn, trainer):
    learners = [TorchLearner(model_folder, centred_spec(given)) for given in ({}, trainer)]
    whole, parts = (learner.train(drawn()) for learner in learners)
    assert parts.ratio.total_variation == pytest.approx(whole.ratio.total_variation, rel=1e-5)
    gradients = [moments(learner) for learner in learners]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-6)


def test_it_changes_the_gradient_and_repeats_to_the_bit(model_folder, centred_spec, drawn):
    def gradient(batch):
        learner = TorchLearner(model_folder, centred_spec(trust_region="none", importance="none"))
        learner.train(batch)
        return torch.cat([tensor.flatten() for tensor in moments(learner).values()])

    without_rows = Batch(0, [replace(sample, behaviour_rows=None) for sample in drawn().samples])
    one, again, without = map(gradient, (drawn(), drawn(), without_rows))
    assert torch.equal(one, again)
    assert (one - without).norm() > 0.01 * without.norm()


def test_a_fork_changes_nothing_but_rounding(model_folder, centred_spec, drawn, split):
    learners = [TorchLearner(model_folder, centred_spec()) for _ in range(2)]
    batch = drawn()
    for learner, rows in zip(learners, (batch.samples, split(batch.samples)), strict=True):
        learner.train(Batch(0, rows))
    for name, gradient in moments(learners[0]).items():
        torch.testing.assert_close(moments(learners[1])[name], gradient, rtol=1e-3, atol=1e-6)


def test_adapters_learn_with_it_too(model_folder, centred_spec, drawn):
    learner = TorchLearner(model_folder, centred_spec({"lora": {"rank": 2}, "learning_rate": 1e-2}))
    metrics = [learner.train(drawn(step, seed=step)) for step in range(2)]
    assert all(0.0 < step.ratio.total_variation < 1.0 for step in metrics)
    assert not metrics[-1].noop
