"""Samples of several sequences and a critic: one trajectory of all trainable tokens."""

from dataclasses import replace

import numpy as np
import pytest

from gradbus.algorithms import SampleMarks
from gradbus_trainer.step.batch import Batch


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


def test_a_step_with_a_critic_ends_in_the_same_weights(ppo, rewarded, split):
    learners = [ppo(updates=2) for _ in range(2)]
    for learner, rows in zip(learners, (rewarded().samples, split(rewarded().samples)), strict=True):
        learner.train(Batch(0, rows))
    for name, tensor in learners[0].optimizer_tensors().items():
        np.testing.assert_allclose(tensor.numpy(), learners[1].optimizer_tensors()[name].numpy(), atol=1e-4, rtol=1e-3)
