"""A learner with a critic, batches with rewards, and the comparison of two learners' bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch


@pytest.fixture
def ppo(make_spec, model_folder):
    """A learner with a critic; keywords are the critic's fields."""

    def make(trainer=None, algorithm=None, **critic):
        settings = (trainer or {}) | {"critic": {"learning_rate": 1e-3} | critic}
        return TorchLearner(model_folder, make_spec(algorithm={"name": "ppo"} | (algorithm or {}), trainer=settings))

    return make


@pytest.fixture
def rewarded(make_batch):
    """A batch whose samples' advantages hold their rewards, as groups of PPO do: 1 if the first token is even."""

    def make(step=0, seed=0, **made):
        batch = make_batch(step, seed, **made)
        rewards = [float(sample.token_ids[0] % 2 == 0) for sample in batch.samples]
        samples = [replace(s, advantages=np.full(len(s.token_ids), r, np.float32)) for s, r in zip(batch.samples, rewards, strict=True)]
        return Batch(step, samples)

    return make


def state(learner):
    tensors = dict(learner.weights()) | dict(learner.optimizer_tensors())
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
