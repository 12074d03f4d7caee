"""The held-out loss is that by which the trainer learns: both from the same log-probabilities and scores."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradbus.algorithms import algorithm_of, held_out_loss
from gradbus.algorithms.held_out import LEAST_SURPRISE
from gradbus.spec import parse_spec
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, SampleReward
from gradbus_kernels.operators import PairTokens, kto_loss, preference_loss, ranking_loss
from gradbus_kernels.operators.preference_loss import losses
from gradbus_trainer.learners.preference import preference_settings

PREFERENCES = {
    "dpo": {"beta": 0.3, "label_smoothing": 0.1},
    "ipo": {"beta": 0.2},
    "simpo": {},
    "orpo": {"beta": 0.4},
    "kto": {"beta": 0.2, "desirable_weight": 1.3, "undesirable_weight": 0.6},
    "reward_model": {"center": 0.05},
}


def spec_of(kind):
    body = {"name": "given", "kind": kind, "model": {"path": "m"}, "data": {"train": "t", "eval": "e"}, "schedule": {"steps": 1}}
    return parse_spec(body | ({"preference": PREFERENCES[kind]} if kind in PREFERENCES else {}))


def entry(index, samples, rng, *, undesirable=False, references=False):
    """A held-out row with drawn log-probabilities and scores; the middle of a long response is not trained."""
    group = Group(index=index)
    found = LogEntry(index=index)
    for n, length in enumerate(samples):
        logprobs = -np.abs(rng.normal(size=length)).astype("<f4") - 0.01
        sample = group.samples.add(sample_id=f"{index}.{n}", n=n, token_ids=b"\0" * 4 * length, logprobs=logprobs.tobytes())
        sample.undesirable = undesirable and n == 0
        cuts = [(0, length, True)] if length < 4 else [(0, 2, True), (2, 3, False), (3, length, True)]
        for start, end, trained in cuts:
            sample.spans.add(start=start, end=end, trainable=trained)
        found.rewards.append(SampleReward(sample_id=sample.sample_id, status=REWARD_STATUS_OK, reward=float(rng.normal())))
        if references:
            found.reference_logprobs.append((logprobs + rng.normal(size=length).astype("<f4")).tobytes())
    found.group = group.SerializeToString()
    return found


def packed(entries):
    """Log-probabilities and tokens of all samples, as a trainer has them."""
    samples = [sample for one in entries for sample in Group.FromString(one.group).samples]
    references = [np.frombuffer(part, "<f4") for one in entries for part in one.reference_logprobs]
    masks = []
    for sample in samples:
        masks.append(np.zeros(len(sample.token_ids) // 4, bool))
        for span in sample.spans:
            masks[-1][span.start : span.end] = span.trainable
    logprobs = torch.from_numpy(np.concatenate([np.frombuffer(sample.logprobs, "<f4") for sample in samples]).astype(np.float64))
    tokens = PairTokens(
        torch.arange(len(samples)).repeat_interleave(torch.tensor([len(mask) for mask in masks])),
        torch.from_numpy(np.concatenate(masks)),
        len(samples) // 2,
        torch.from_numpy(np.concatenate(references)).double() if references else None,
    )
    return logprobs, tokens


ROWS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans()), min_size=1, max_size=7)


@given(ROWS, st.integers(0, 999), st.sampled_from(["dpo", "ipo", "simpo", "orpo"]))
def test_the_loss_of_pairs_is_the_operators(rows, seed, kind):
    spec, rng = spec_of(kind), np.random.default_rng(seed)
    referring = algorithm_of(spec).needs_reference
    entries = [entry(at, row[:2], rng, references=referring) for at, row in enumerate(rows)]
    expected, found = preference_loss(*packed(entries), preference_settings(spec)), held_out_loss(spec, entries)
    assert found.keys() == {"loss", "accuracy", "margin"}
    assert found["loss"] == pytest.approx(expected.total.item(), rel=1e-11, abs=1e-13)
    assert found["margin"] == pytest.approx(expected.margin.item(), rel=1e-11, abs=1e-13)
    assert found["accuracy"] == pytest.approx(expected.accuracy.item(), rel=1e-12)


@given(ROWS, st.integers(0, 999))
def test_the_loss_of_labelled_responses_is_the_operators(rows, seed):
    spec, rng = spec_of("kto"), np.random.default_rng(seed)
    entries = [entry(at, row[:2], rng, undesirable=row[2], references=True) for at, row in enumerate(rows)]
    labels = torch.tensor([not undesirable for *_, undesirable in rows])
    expected, found = kto_loss(*packed(entries), labels, preference_settings(spec)), held_out_loss(spec, entries)
    assert (found["loss"], found["kl"]) == (pytest.approx(expected.total.item(), rel=1e-11), pytest.approx(expected.kl.item(), abs=1e-11))
    for name, value in (("desirable_logratio", expected.desirable), ("undesirable_logratio", expected.undesirable)):
        assert (name in found) == (not value.isnan())
        assert found.get(name, 0.0) == pytest.approx(value.nan_to_num().item(), abs=1e-11)
    assert ("margin" in found) == (len(set(labels.tolist())) == 2)
    assert found.keys() <= {"loss", *algorithm_of(spec).metric_names}


@given(st.lists(st.just((1, 1)), min_size=1, max_size=7), st.integers(0, 999))
def test_the_loss_of_a_reward_model_is_the_operators(rows, seed):
    spec, rng = spec_of("reward_model"), np.random.default_rng(seed)
    entries = [entry(at, row, rng) for at, row in enumerate(rows)]
    scores = torch.tensor([reward.reward for one in entries for reward in one.rewards], dtype=torch.float64)
    expected, found = ranking_loss(scores, spec.preference.center), held_out_loss(spec, entries)
    assert (found["loss"], found["accuracy"]) == (pytest.approx(expected.total.item(), rel=1e-12), expected.accuracy.item())
    assert found["margin"] == pytest.approx((expected.chosen - expected.rejected).item(), abs=1e-12)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(0, 999))
def test_the_loss_of_completions_is_a_mean_over_tokens(lengths, seed):
    entries = [entry(at, [length], np.random.default_rng(seed + at)) for at, length in enumerate(lengths)]
    logprobs, tokens = packed(entries)
    assert held_out_loss(spec_of("sft"), entries) == {"loss": pytest.approx(-logprobs[tokens.trained].mean().item(), rel=1e-12)}


@pytest.mark.parametrize("kind", ["sft", *PREFERENCES])
@pytest.mark.parametrize("value", [math.nan, -math.inf, -3e38, 0.0])
def test_what_is_not_finite_raises_nothing(kind, value):
    entries = [entry(at, [2] if kind == "sft" else [2, 2], np.random.default_rng(at), references=True) for at in range(3)]
    for at, one in enumerate(entries):
        group = Group.FromString(one.group)
        group.samples[0 if at == 1 else -1].logprobs = np.array([value, -1.0], "<f4").tobytes()
        one.group = group.SerializeToString()
        one.rewards[-1].reward = value
    assert isinstance(held_out_loss(spec_of(kind), entries)["loss"], float)


def test_what_is_not_a_number_stays_none():
    entries = [entry(at, [2, 2], np.random.default_rng(at), references=True) for at in range(2)]
    group = Group.FromString(entries[0].group)
    group.samples[1].logprobs = np.array([math.nan, -1.0], "<f4").tobytes()
    entries[0].group = group.SerializeToString()
    assert math.isnan(held_out_loss(spec_of("kto"), entries)["kl"])
    assert math.isnan(held_out_loss(spec_of("dpo"), entries)["accuracy"])


def test_the_least_surprise_is_the_trainers():
    assert LEAST_SURPRISE == losses.LEAST_SURPRISE
