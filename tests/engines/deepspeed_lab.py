"""What the tests of DeepSpeed's learner on one rank share."""

from functools import cache
from importlib.util import find_spec

import pytest
import torch

from gradbus_trainer.settings import TorchrunRank

NEEDS_DEEPSPEED = [
    pytest.mark.engines,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs what `make test-engines` installs"),
]


@cache
def _one_rank():
    """torch has one process group in a process, whoever asks."""
    from gradbus_trainer.learners.deepspeed.ranks import Ranks

    return Ranks(TorchrunRank(), "cpu", 60.0)


def leader():
    """Of one rank, in this process. Skips the test where DeepSpeed is not installed."""
    pytest.importorskip("deepspeed")
    from gradbus_trainer.learners.deepspeed.leader import Leader

    return Leader(_one_rank(), 60.0)


def state(learner):
    """Copies of its weights, and of the optimiser's tensors."""
    tensors = {**learner.weights(), **learner.optimizer_tensors()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_alike(tensors, others, bound=2e-5):
    """Relative to each tensor's size."""
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        scale = max(float(others[name].abs().max()), 1e-4)
        torch.testing.assert_close(tensor, others[name], rtol=0.0, atol=bound * scale, msg=lambda text, name=name: f"{name}: {text}")
