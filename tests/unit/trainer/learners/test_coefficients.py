"""Coefficients of single steps: each has the bits of a run whose spec has them."""

import pytest
import torch

from gradbus.algorithms import Coefficients
from gradbus_trainer.learners.torch import TorchLearner

CONTROLLED = {"kl": 0.1, "kl_control": {"target": 0.05}, "entropy_control": {}}


@pytest.fixture
def learner(make_spec, model_folder):
    return lambda algorithm, **trainer: TorchLearner(model_folder, make_spec(algorithm=algorithm, trainer=trainer))


@pytest.mark.parametrize("trainer", [{}, {"lora": {"rank": 2}}, {"inner": {"epochs": 2}}], ids=["plain", "adapters", "two-updates"])
def test_a_step_has_the_bits_of_a_spec_with_its_coefficients(learner, make_batch, trainer):
    controlled = learner(CONTROLLED, **trainer)
    for step, (kl, entropy) in enumerate([(0.1, 0.0), (0.3, 0.02), (0.2, 0.0)]):
        fixed = learner({"kl": kl, "entropy": entropy}, **trainer)
        if step:
            fixed.restore(step, dict(controlled.weights()), dict(controlled.optimizer_tensors()))
        batch = make_batch(step, seed=step)
        assert controlled.train(batch, Coefficients(kl, entropy)) == fixed.train(batch)
        assert all(torch.equal(tensor, fixed.weights()[name]) for name, tensor in controlled.weights().items())


def test_a_kl_in_the_reward_is_in_no_loss_whatever_its_coefficient(learner, make_batch):
    algorithm = {"name": "reinforce_pp", "kl_control": {"target": 0.05}}
    found = [learner(algorithm).train(make_batch(), Coefficients(kl, 0.0)) for kl in (0.1, 0.7)]
    assert found[0] == found[1]
