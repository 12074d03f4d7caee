"""A critic whose targets are corrected by V-trace, inside the plain learner."""

from dataclasses import replace

import numpy as np
import pytest

from gradbus_trainer.learners.policy_step import anchored
from gradbus_trainer.step.batch import Batch

from .conftest import same, state
from .test_gae import vtrace_written_out

KINDS = ["full", "lora", "head"]
FIELDS = {"value_lambda": 0.8, "gamma": 0.9, "policy_lambda": 0.7}


def with_anchor(learner, batch):
    return anchored(batch, learner._present_logprobs(batch))


def on_policy(learner, batch):
    """The batch as if the policy before the step had sampled it."""
    return Batch(batch.step, [replace(row, behaviour_logprobs=row.proximal_logprobs) for row in with_anchor(learner, batch).samples])


def estimates_of(learner, batch):
    found = learner._critic.estimate(with_anchor(learner, batch))
    learner._critic.forget_gradient()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [8192, 12])
def test_targets_are_those_of_the_papers_sum(ppo, rewarded, kind, budget):
    learner = ppo({"micro_batch_tokens": budget}, kind=kind, target="vtrace", **FIELDS)
    for step in range(2):
        learner.train(rewarded(step, seed=step))
    batch = with_anchor(learner, rewarded(2, seed=4))
    found = estimates_of(learner, batch)
    assert any(not row.trainable.all() for row in batch.samples)
    for row, values, targets in zip(batch.samples, found.values, found.targets, strict=True):
        ratios = (row.proximal_logprobs.astype(np.float64) - row.behaviour_logprobs)[row.trainable]
        rewards = [0.0] * (len(values) - 1) + [float(row.advantages[0])]
        exact = vtrace_written_out(values.tolist(), rewards, ratios.tolist(), 0.8, 0.9)
        assert targets.tolist() == pytest.approx([value + part for value, part in zip(values.tolist(), exact, strict=True)], abs=1e-9)


def test_advantages_are_those_without_it_and_targets_too_where_the_policy_has_not_moved(ppo, rewarded):
    plain, corrected = (ppo(target=target, **FIELDS) for target in ("returns", "vtrace"))
    stale = rewarded(0, seed=3)
    one, other = (estimates_of(learner, stale) for learner in (plain, corrected))
    for row, same_row in zip(one.batch.samples, other.batch.samples, strict=True):
        assert row.advantages.tolist() == same_row.advantages.tolist()
    assert not np.allclose(np.concatenate(one.targets), np.concatenate(other.targets), atol=1e-3)
    fresh = on_policy(plain, stale)
    one, other = (estimates_of(learner, fresh) for learner in (plain, corrected))
    np.testing.assert_allclose(np.concatenate(one.targets), np.concatenate(other.targets), atol=1e-9)


@pytest.mark.parametrize("updates", [1, 2])
def test_a_resume_ends_in_the_same_bits(ppo, rewarded, updates):
    straight, resumed = (ppo(target="vtrace", updates=updates) for _ in range(2))
    straight.train(rewarded(0))
    weights, optimizer = dict(straight.weights()), dict(straight.optimizer_tensors())
    saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (weights, optimizer)]
    resumed.restore(1, *saved)
    for learner in (straight, resumed):
        learner.train(rewarded(1, seed=1))
    assert same(state(straight), state(resumed))


def test_a_fork_changes_no_target(ppo, rewarded, split):
    learner = ppo(target="vtrace", **FIELDS)
    batch = rewarded(0, seed=4)
    whole, parts = (estimates_of(learner, Batch(0, rows)) for rows in (batch.samples, split(batch.samples)))
    np.testing.assert_allclose(np.concatenate(whole.targets), np.concatenate(parts.targets), atol=1e-5)
