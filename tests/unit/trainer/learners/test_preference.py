"""Preferences as a weighted policy loss: its gradient is that of the loss of pairs or labels, whatever computes it."""

import math
from dataclasses import replace
from itertools import starmap

import numpy as np
import pytest
import torch

from gradbus.algorithms import algorithm_of
from gradbus.spec import parse_spec
from gradbus_kernels.models.causal_lm import load_causal_lm, load_weights, packed_logprobs
from gradbus_kernels.models.lora import adapters_off, add_adapters
from gradbus_kernels.operators import PairTokens, kto_loss, preference_loss
from gradbus_trainer.learners.preference import preference_settings, weighed_batch
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch

LOSSES = ("dpo", "ipo", "simpo", "orpo", "kto")
LABELS = (1.0, -1.0, -1.0, 1.0, 1.0, -1.0)
WAYS = {
    "one pass": {},
    "a token a pass": {"micro_batch_tokens": 1},
    "some passes": {"micro_batch_tokens": 24},
    "threads": {"threads": 2},
    "threads and passes": {"threads": 2, "micro_batch_tokens": 16},
}


@pytest.fixture
def pairs(make_batch):
    """Six pairs of mixed lengths, each with one prompt; `masked`: some tokens are not trained, though one of each response is.

    Their advantages are the labels of responses, of which the second of a pair has none.
    """

    def make(masked=False):
        samples = list(make_batch(all_trainable=not masked).samples)
        for chosen, rejected in zip(samples[::2], samples[1::2], strict=True):
            for sample in (chosen, rejected):
                sample.trainable[0] = True
                sample.behaviour_logprobs[:] = 0.0
            assert np.array_equal(chosen.prompt_ids, rejected.prompt_ids)
        for sample, label in zip(samples, (label for own in LABELS for label in (own, 0.0)), strict=True):
            sample.advantages[:] = label
        return Batch(0, samples)

    return make


def make_spec(kind, **trainer):
    trainer = {"learning_rate": 1e-3, "max_grad_norm": 1e9} | trainer
    body = {"name": "pairs", "kind": kind, "model": {"path": "m"}, "data": {"train": "t"}, "trainer": trainer, "schedule": {"steps": 9}}
    preferences = {"dpo": {"label_smoothing": 0.1}, "kto": {"desirable_weight": 1.5, "undesirable_weight": 0.5}}
    return parse_spec(body | ({"preference": preferences[kind]} if kind in preferences else {}))


def nudged(weights, size):
    """The weights with a fixed noise, so that adapters do something."""
    draw = torch.Generator().manual_seed(3)
    return {name: tensor + size * torch.randn(tensor.shape, generator=draw) for name, tensor in weights.items()}


def by_learner(folder, spec, batch, weights):
    """Metrics and gradient of the first step: AdamW's first moment after it is (1 - beta1) · gradient."""
    learner = TorchLearner(folder, spec)
    learner.restore(0, weights, {})
    metrics = learner.train(batch)
    moments = learner.optimizer_tensors().items()
    found = {name.removesuffix(".exp_avg"): tensor / (1.0 - spec.trainer.betas[0]) for name, tensor in moments if name.endswith(".exp_avg")}
    return metrics, found


def by_autograd(folder, spec, batch, weights):
    """Loss and gradient of the operator through the whole model, in one pass with one graph."""
    model, lora = load_causal_lm(folder), spec.trainer.lora
    named = model.trained_parameters() if lora is None else add_adapters(model, lora, spec.seed)
    load_weights(named, weights)
    given = [sample.reference_logprobs for sample in batch.samples]
    references = torch.from_numpy(np.concatenate(given)).double()
    if lora is not None:
        with torch.no_grad(), adapters_off(model):
            references = packed_logprobs(model, batch.samples, 1.0)[0].double()
    logprobs, _ = packed_logprobs(model, batch.samples, 1.0)
    lengths = [len(sample.token_ids) for sample in batch.samples]
    tokens = PairTokens(
        sequences=torch.repeat_interleave(torch.tensor(lengths)),
        trained=torch.from_numpy(np.concatenate([sample.trainable for sample in batch.samples])),
        pairs=len(lengths) // 2,
        reference_logprobs=references if spec.kind in {"dpo", "ipo", "kto"} else None,
    )
    settings = preference_settings(spec)
    if spec.kind == "kto":
        loss = kto_loss(logprobs, tokens, torch.tensor(LABELS) > 0.0, settings)
    else:
        loss = preference_loss(logprobs, tokens, settings)
    loss.total.backward()
    return float(loss.total.detach()), {name: parameter.grad for name, parameter in named.items()}


def relative_error(found, expected):
    """Of all tensors together."""
    assert found.keys() == expected.keys()
    norm = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in expected.values()))
    assert norm > 1e-3
    return math.sqrt(sum(float((found[name].double() - expected[name].double()).square().sum()) for name in expected)) / norm


def assert_same(folder, spec, batch, size=0.0):
    weights = nudged(TorchLearner(folder, spec).weights(), size)
    loss, expected = by_autograd(folder, spec, batch, weights)
    metrics, found = by_learner(folder, spec, batch, weights)
    assert metrics.loss.total == pytest.approx(loss, rel=1e-6)
    assert relative_error(found, expected) < 1e-6
    return metrics


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_gradient_is_that_of_the_loss(model_folder, pairs, kind, masked):
    assert_same(model_folder, make_spec(kind), pairs(masked))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["dpo", "orpo", "kto"])
def test_micro_batches_and_threads_do_not_change_it(model_folder, pairs, kind, way):
    assert_same(model_folder, make_spec(kind, **WAYS[way]), pairs(masked=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["dpo", "ipo", "kto"])
def test_a_learner_of_adapters_is_its_own_reference(model_folder, pairs, kind, way):
    batch = pairs(masked=True)
    misled = Batch(0, [replace(sample, reference_logprobs=np.full_like(sample.reference_logprobs, np.nan)) for sample in batch.samples])
    assert_same(model_folder, make_spec(kind, lora={"rank": 4}, **WAYS[way]), misled, size=0.05)


def test_tokens_that_are_not_trained_have_no_weight(pairs):
    batch, settings = pairs(masked=True), preference_settings(make_spec("dpo"))
    references = [sample.reference_logprobs for sample in batch.samples]
    logprobs = [sample.reference_logprobs + np.float32(0.1) for sample in batch.samples]
    weighed = weighed_batch(batch, logprobs, references, settings)
    spoilt = [np.where(sample.trainable, part, np.float32(-50.0)) for sample, part in zip(batch.samples, logprobs, strict=True)]
    again = weighed_batch(batch, spoilt, references, settings)
    assert weighed.metrics == again.metrics
    for sample, other in zip(weighed.batch.samples, again.batch.samples, strict=True):
        assert np.array_equal(sample.advantages, other.advantages)
        assert not sample.advantages[~sample.trainable].any()
        assert sample.advantages.dtype == np.float32
    signs = [np.sign(sample.advantages[sample.trainable]) for sample in weighed.batch.samples]
    assert all(starmap(lambda chosen, rejected: (chosen > 0).all() and (rejected < 0).all(), zip(signs[::2], signs[1::2], strict=True)))


def test_a_policy_that_equals_its_reference_has_no_margin(model_folder, pairs):
    metrics, _ = by_learner(model_folder, spec := make_spec("dpo", lora={"rank": 4}), pairs(), TorchLearner(model_folder, spec).weights())
    assert (metrics.preference.margin, metrics.preference.accuracy) == (0.0, 0.5)
    assert metrics.loss.total == pytest.approx(math.log(2.0), rel=1e-12)


def test_labelled_responses_lose_one_half_at_the_start_and_mismatched_ones_are_not_trained(model_folder, pairs):
    batch = pairs()
    metrics, _ = by_learner(model_folder, spec := make_spec("kto", lora={"rank": 4}), batch, TorchLearner(model_folder, spec).weights())
    assert metrics.loss.total == pytest.approx(0.5 * (1.5 + 0.5) / 2, rel=1e-12)
    assert (metrics.loss.kl, metrics.preference.margin, metrics.preference.accuracy) == (0.0, 0.0, None)
    assert metrics.tokens == sum(batch.trainable_counts[::2])


def test_the_reference_point_is_that_of_the_whole_step_and_a_label_that_is_missing_has_no_mean(pairs):
    batch, settings = pairs(masked=True), preference_settings(make_spec("kto"))
    references = [sample.reference_logprobs for sample in batch.samples]
    logprobs = [part + np.float32(0.1 * (1 + at % 2)) for at, part in enumerate(references)]
    weighed = weighed_batch(batch, logprobs, references, settings)
    assert weighed.loss.kl == pytest.approx(0.2 * np.mean(batch.trainable_counts[1::2]), rel=1e-6)
    assert weighed.metrics.margin == pytest.approx(0.1 * (weighed.metrics.chosen - weighed.metrics.rejected), rel=1e-12)
    assert [np.sign(sample.advantages[sample.trainable]).mean() for sample in weighed.batch.samples] == list(LABELS)
    for sample in batch.samples[::2]:
        sample.advantages[:] = -1.0
    alone = weighed_batch(batch, logprobs, references, settings).metrics
    assert (alone.chosen, alone.margin) == (None, None)
    assert alone.rejected > 0.0


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_needs_the_reference_if_the_conductor_asks_for_it(kind):
    spec = make_spec(kind)
    assert preference_settings(spec).needs_reference == algorithm_of(spec).needs_reference


def test_completions_have_no_loss_of_pairs():
    assert preference_settings(make_spec("sft")) is None
