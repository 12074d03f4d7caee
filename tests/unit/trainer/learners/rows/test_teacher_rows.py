"""The learner on a teacher's rows: the gradient of a plain loop, micro-batches, threads, adapters, and what it reports."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradbus_kernels.models.causal_lm import head_inputs, load_causal_lm, packed_logprobs
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch

COUNT, TEMPERATURE = 5, 0.7
ALGORITHM = {"name": "opd", "importance": "none", "trust_region": "none"}


@pytest.fixture
def taught(model_folder, make_batch):
    """A batch with the rows of a random teacher."""

    def make(step=0, seed=0):
        rng, vocabulary, samples = np.random.default_rng(seed), load_causal_lm(model_folder).vocab_size, []
        for sample in make_batch(step, seed).samples:
            logits = torch.from_numpy(rng.normal(0.0, 2.0, (len(sample.token_ids), vocabulary))).log_softmax(-1)
            values, ids = logits.topk(COUNT)
            rest = logits.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True)
            rows = ids.numpy().astype(np.int32), torch.cat((values, rest), 1).numpy().astype(np.float32)
            samples.append(replace(sample, reference_logprobs=None, teacher_rows=rows))
        return Batch(step, samples)

    return make


@pytest.fixture
def rows_spec(make_spec):
    def make(**trainer):
        return make_spec(algorithm=ALGORITHM, teacher={"path": "t", "top_k": COUNT}, rollout={"temperature": TEMPERATURE}, trainer=trainer)

    return make


def moments(learner):
    """Gradients: AdamW's first moment after one unclipped step is (1 - beta1) · gradient."""
    found = {name: tensor / 0.1 for name, tensor in learner.optimizer_tensors().items() if name.endswith(".exp_avg")}
    return {name.removesuffix(".exp_avg"): tensor for name, tensor in found.items()}


def plain(folder, batch):
    """Loss and gradients by autograd through whole rows of logits."""
    model, total = load_causal_lm(folder), 0.0
    count = sum(batch.trainable_counts)
    for sample in batch.samples:
        hidden, head, _ = head_inputs(model, [sample])
        every = (hidden @ head.T / TEMPERATURE).double().log_softmax(-1)
        for t in np.nonzero(sample.trainable)[0]:
            ids, teacher = torch.from_numpy(sample.teacher_rows[0][t]).long(), torch.from_numpy(sample.teacher_rows[1][t])
            policy = torch.cat((every[t, ids].exp(), (1.0 - every[t, ids].exp().sum())[None]))
            total = total + (policy * (policy.log() - teacher)).sum() / count
    total.backward()
    return total.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def test_loss_and_gradient_are_those_of_a_plain_loop(model_folder, rows_spec, taught):
    batch, learner = taught(), TorchLearner(model_folder, rows_spec())
    metrics = learner.train(batch)
    loss, gradients = plain(model_folder, batch)
    assert metrics.loss.total == metrics.loss.policy == pytest.approx(loss, rel=1e-5)
    found = moments(learner)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


def test_it_reports_the_ratio_and_the_entropy_of_the_sampled_tokens(model_folder, rows_spec, taught):
    batch, model = taught(), load_causal_lm(model_folder)
    metrics = TorchLearner(model_folder, rows_spec()).train(batch)
    with torch.no_grad():
        logprobs, entropies = packed_logprobs(model, batch.samples, TEMPERATURE)
    mask = np.concatenate([sample.trainable for sample in batch.samples])
    behaviour = np.concatenate([sample.behaviour_logprobs for sample in batch.samples])
    assert metrics.loss.entropy == pytest.approx(entropies.numpy()[mask].mean(), rel=1e-5)
    assert metrics.ratio.logprob_diff == pytest.approx(np.abs(logprobs.numpy() - behaviour)[mask].mean(), rel=1e-5)


@pytest.mark.parametrize("trainer", [{"micro_batch_tokens": 1}, {"micro_batch_tokens": 30}, {"threads": 2}])
def test_micro_batches_and_threads_change_nothing_but_rounding(model_folder, rows_spec, taught, trainer):
    learners = [TorchLearner(model_folder, rows_spec(**given)) for given in ({}, trainer)]
    whole, parts = (learner.train(taught()) for learner in learners)
    assert parts.loss.total == pytest.approx(whole.loss.total, rel=1e-5)
    gradients = [moments(learner) for learner in learners]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-6)


def test_steps_approach_the_teacher_and_repeat_to_the_bit(model_folder, rows_spec, taught):
    def losses():
        learner = TorchLearner(model_folder, rows_spec(learning_rate=1e-2))
        return [learner.train(replace(taught(), step=step)).loss.total for step in range(8)]

    found = losses()
    assert found[-1] < found[0] / 2
    assert losses() == found


def test_adapters_learn_from_rows_too(model_folder, rows_spec, taught):
    learner = TorchLearner(model_folder, rows_spec(lora={"rank": 2}, learning_rate=1e-2))
    found = [learner.train(replace(taught(), step=step)).loss.total for step in range(8)]
    assert found[-1] < found[0]
