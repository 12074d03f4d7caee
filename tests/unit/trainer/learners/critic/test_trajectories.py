"""Samples of several sequences and a critic: one trajectory of all trainable tokens."""

from dataclasses import replace

import numpy as np
import pytest

from gradbus.algorithms import SampleMarks
from gradbus.spec import CriticSpec
from gradbus_trainer.learners.critic.trajectories import Trajectories
from gradbus_trainer.step.batch import Batch, TrainSample


@pytest.mark.parametrize("kind", ["full", "head"])
@pytest.mark.parametrize("budget", [8192, 12])
def test_a_fork_changes_neither_values_nor_advantages_nor_targets(ppo, rewarded, kind, budget, split):
    """Also after a cut, by lambdas that depend on the length."""
    learner = ppo({"micro_batch_tokens": budget}, kind=kind, length_alpha=0.5, gamma=0.9, value_lambda=0.8)
    for step in range(2):
        learner.train(rewarded(step, seed=step))
    batch = rewarded(2, seed=4)
    marked = [replace(row, marks=SampleMarks(cut_off=at % 2 == 0)) for at, row in enumerate(batch.samples)]
    whole, parts = (learner._critic.estimate(Batch(2, rows)) for rows in (marked, split(marked)))
    for one, other in ((whole.values, parts.values), (whole.targets, parts.targets)):
        np.testing.assert_allclose(np.concatenate(one), np.concatenate(other), atol=1e-5)
    for one, other in zip(split(whole.batch.samples), parts.batch.samples, strict=True):
        np.testing.assert_allclose(one.advantages, other.advantages, atol=1e-4)


def test_rewards_of_turns_enter_the_deltas_of_the_last_tokens_of_their_turns():
    """By a loop over the tokens that the policy drew: 2, 1 and 4 for turns of two, one and two tokens, with a tool's between them."""
    trainable = np.array([True, True, False, True, False, False, True, True])
    returns = np.array([7, 7, 7, 5, 5, 5, 4, 4], np.float32)
    ids = np.arange(8, dtype=np.int32)
    row = TrainSample(ids[:1], ids, np.zeros(8, np.float32), trainable, returns)
    settings = CriticSpec(gamma=0.9, policy_lambda=0.8, value_lambda=0.7)
    values, rewards = [0.5, -1.0, 2.0, 0.25, 1.5], [0.0, 2.0, 1.0, 0.0, 4.0]
    found = Trajectories.of([row], [np.array(values)], [0.0])
    for given, lam in ((found.policy_advantages(settings), 0.8), (found.targets(settings), 0.7)):
        later, expected = 0.0, []
        for t in reversed(range(5)):
            later = rewards[t] + 0.9 * (values[t + 1] if t < 4 else 0.0) - values[t] + 0.9 * lam * later
            expected.insert(0, later if lam == 0.8 else later + values[t])
        np.testing.assert_allclose(given[0], expected, rtol=1e-12)


def test_a_step_with_a_critic_ends_in_the_same_weights(ppo, rewarded, split):
    learners = [ppo(updates=2) for _ in range(2)]
    for learner, rows in zip(learners, (rewarded().samples, split(rewarded().samples)), strict=True):
        learner.train(Batch(0, rows))
    for name, tensor in learners[0].optimizer_tensors().items():
        np.testing.assert_allclose(tensor.numpy(), learners[1].optimizer_tensors()[name].numpy(), atol=1e-4, rtol=1e-3)
