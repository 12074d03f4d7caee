"""Several updates of the policy in a step: each is that of a step of its own, and a resume changes no bit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gradbus.spec import InnerSpec
from gradbus_trainer.learners.policy_step import anchored
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch, prompt_groups
from gradbus_trainer.step.minibatches import minibatches

KINDS = {"fp32": {}, "bf16": {"dtype": "bf16"}, "threads": {"threads": 2}, "adapters": {"lora": {"rank": 2}}}


@pytest.fixture
def learner(make_spec, model_folder):
    """A learner; `inner` are the fields of the section, the others those of `[trainer]`."""

    def make(inner=None, algorithm=None, **trainer):
        sections = {"trainer": trainer | {"inner": inner or {}}, "algorithm": algorithm or {}}
        return TorchLearner(model_folder, make_spec(seed=5, **sections))

    return make


def state(learner):
    tensors = dict(learner.weights()) | dict(learner.optimizer_tensors())
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def on_policy(learner, batch):
    """The batch as the learner's policy would have sampled it."""
    parts = zip(batch.samples, learner._present_logprobs(batch), strict=True)
    return Batch(batch.step, [replace(sample, behaviour_logprobs=logprobs) for sample, logprobs in parts])


@pytest.mark.parametrize("kind", KINDS)
def test_two_epochs_are_two_steps_over_the_same_groups(learner, make_batch, kind):
    """Of whole steps: AdamW counts updates, and the gradient of the first is gone before the second."""
    inner, steps = learner({"epochs": 2}, **KINDS[kind]), learner(**KINDS[kind])
    found = inner.train(make_batch(0))
    parts = [steps.train(make_batch(step, seed=0)) for step in range(2)]
    assert same(state(inner), state(steps))
    assert (found.updates, [part.updates for part in parts]) == (2, [1, 1])
    assert found.tokens == parts[0].tokens
    assert found.grad_norm == pytest.approx(sum(part.grad_norm for part in parts) / 2)
    assert found.loss.total == pytest.approx(sum(part.loss.total for part in parts) / 2)
    assert found.ratio.mean == pytest.approx(sum(part.ratio.mean for part in parts) / 2)
    assert found.ratio.max == max(part.ratio.max for part in parts)


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_minibatches_are_steps_over_their_groups_each_with_weights_of_its_own(learner, make_batch, aggregate):
    algorithm, fields = {"aggregate": aggregate}, {"epochs": 2, "minibatches": 3}
    inner, steps = learner(fields, algorithm), learner({}, algorithm)
    found = inner.train(make_batch(0))
    for number, part in enumerate(minibatches(make_batch(0), InnerSpec(**fields), 5)):
        assert len(prompt_groups(part.samples)) == 1
        steps.train(Batch(number, part.samples))
    assert same(state(inner), state(steps))
    assert found.updates == 6


def test_a_section_of_ones_has_the_bits_of_no_section(learner, make_batch):
    without, ones = learner(), learner({"epochs": 1, "minibatches": 1})
    assert without.train(make_batch()) == ones.train(make_batch())
    assert same(state(without), state(ones))


def test_the_learning_rate_counts_steps(learner, make_batch):
    inner = learner({"epochs": 3}, lr_schedule="linear")
    plain = learner(lr_schedule="linear")
    rates = [[one.train(make_batch(step)).learning_rate for step in range(3)] for one in (inner, plain)]
    assert rates[0] == rates[1] == pytest.approx([1e-3, 9e-4, 8e-4])
    assert {float(tensor) for name, tensor in inner.optimizer_tensors().items() if name.endswith(".step")} == {9.0}


@pytest.mark.parametrize("algorithm", [{}, {"importance": "decoupled"}, {"name": "ppo"}], ids=["behaviour", "decoupled", "ppo"])
def test_a_resume_between_two_steps_ends_in_the_same_bits(learner, make_batch, algorithm):
    critic = {"critic": {"updates": 2}} if algorithm.get("name") == "ppo" else {}
    straight, resumed = (learner({"epochs": 2, "minibatches": 2}, algorithm, **critic) for _ in range(2))
    for step in range(4):
        if step == 2:
            saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors())]
        straight.train(make_batch(step, seed=step))
    resumed.restore(2, *saved)
    for step in range(2, 4):
        resumed.train(make_batch(step, seed=step))
    assert same(state(straight), state(resumed))


@pytest.mark.parametrize("importance", ["behaviour", "decoupled"])
def test_samples_of_the_policy_itself_are_clipped_in_later_updates_alone(learner, make_batch, importance):
    algorithm = {"importance": importance, "clip": [0.05, 0.05]}
    shares = []
    for epochs in (1, 3):
        one = learner({"epochs": epochs}, algorithm, learning_rate=1e-2)
        ratio = one.train(on_policy(one, make_batch(all_trainable=True))).ratio
        shares.append(ratio.clipped_low + ratio.clipped_high)
    assert shares[0] == 0.0
    assert shares[1] > 0.05


def test_the_policy_before_the_step_bounds_every_update_of_it(learner, make_batch):
    """Two epochs are two steps whose samples hold the log-probabilities of the policy before the first."""
    algorithm = {"importance": "decoupled", "clip": [0.01, 0.01]}
    inner, steps, unbounded = learner({"epochs": 2}, algorithm), learner({}, algorithm), learner({}, algorithm)
    batch = make_batch()
    before = anchored(batch, steps._present_logprobs(batch))
    assert all(sample.proximal_logprobs.dtype == np.float32 for sample in before.samples)
    found = inner.train(batch)
    parts = [steps.train(Batch(step, before.samples)) for step in range(2)]
    assert same(state(inner), state(steps))
    assert parts[0].ratio.clipped_low + parts[0].ratio.clipped_high == 0.0
    assert found.ratio.clipped_low + found.ratio.clipped_high > 0.0
    first = unbounded.train(batch)
    assert first.loss.policy == pytest.approx(parts[0].loss.policy, abs=1e-6), "in the first update it is the policy itself"
    unbounded.train(Batch(1, batch.samples))
    assert not same(state(inner), state(unbounded))


def test_a_step_without_weight_makes_no_update(learner):
    assert (found := learner({"epochs": 2, "minibatches": 2}).train(Batch(0, []))).noop
    assert found.updates == 0


def written_out_kl(learner, before, part):
    """KL of the policy before the step to the present one, over the trainable tokens of a part; in Python's floats."""
    now = anchored(part, learner._present_logprobs(part)).samples
    columns = (zip(one.proximal_logprobs, before[id(s)], s.trainable, strict=True) for one, s in zip(now, part.samples, strict=True))
    apart = [float(present) - float(past) for column in columns for present, past, counts in column if counts]
    return sum(math.exp(d) - 1.0 - d for d in apart) / len(apart)


@pytest.mark.parametrize("kind", ["fp32", "threads"])
def test_the_updates_end_after_the_first_that_finds_the_policy_too_far_away(learner, make_batch, kind):
    """By hand: steps over the parts in place of the updates, and the KL of each before it."""
    fields, batch = {"epochs": 3, "minibatches": 2}, make_batch(0)
    by_hand, kls, states = learner(**KINDS[kind]), [], []
    with_anchor = anchored(batch, by_hand._present_logprobs(batch)).samples
    before = {id(sample): one.proximal_logprobs for sample, one in zip(batch.samples, with_anchor, strict=True)}
    for number, part in enumerate(minibatches(batch, InnerSpec(**fields), 5)):
        kls.append(written_out_kl(by_hand, before, part))
        by_hand.train(Batch(number, part.samples))
        states.append(state(by_hand))
    assert kls[0] == pytest.approx(0.0, abs=1e-9)
    last = max(number for number in range(2, 6) if kls[number] > 1.01 * max(kls[:number]))
    stopped = learner(fields | {"stop_kl": 0.999 * kls[last]}, **KINDS[kind])
    found = stopped.train(batch)
    assert found.updates == last + 1
    assert found.ratio.step_kl == pytest.approx(kls[last], rel=1e-3)
    assert found.tokens == sum(batch.trainable_counts)
    assert same(state(stopped), states[last])


def test_a_bound_that_is_not_reached_changes_no_bit(learner, make_batch):
    free, bounded = learner({"epochs": 2, "minibatches": 2}), learner({"epochs": 2, "minibatches": 2, "stop_kl": 1e3})
    one, other = free.train(make_batch()), bounded.train(make_batch())
    assert same(state(free), state(bounded))
    assert (one.updates, one.loss, one.ratio.step_kl) == (other.updates, other.loss, 0.0)
    assert other.ratio.step_kl > 0.0


def test_a_resume_after_a_step_that_ended_early_ends_in_the_same_bits(learner, make_batch):
    fields = {"epochs": 4, "stop_kl": 1e-4}
    straight, resumed = (learner(fields, learning_rate=1e-2) for _ in range(2))
    assert straight.train(make_batch(0)).updates < 4
    saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors())]
    resumed.restore(1, *saved)
    found = [one.train(make_batch(1, seed=1)) for one in (straight, resumed)]
    assert found[0] == found[1]
    assert same(state(straight), state(resumed))
