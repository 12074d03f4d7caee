"""Frozen attention of a critic: the base model's, in no checkpoint, and known by name."""

from types import SimpleNamespace

import pytest
import torch

from gradbus.errors import ModelError
from gradbus_trainer.learners.critic.frozen import freeze_attention

from .conftest import same, state


def test_frozen_attention_stays_that_of_the_base_model_and_is_in_no_checkpoint(ppo, rewarded):
    learner = ppo(freeze="attention", learning_rate=1e-2)
    body = dict(learner._critic.states.model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in body.items()}
    for step in range(3):
        learner.train(rewarded(step, seed=step))
    moved = {name for name, parameter in body.items() if not torch.equal(parameter, before[name])}
    assert moved
    assert not any("self_attn" in name for name in moved)
    assert all("self_attn" in name for name in body.keys() - moved)
    stored = {name.removeprefix("critic.") for name in learner.optimizer_tensors() if name.startswith("critic.")}
    assert not any("self_attn" in name for name in stored)
    assert moved < stored
    assert all(parameter.requires_grad for parameter in learner._model.parameters()), "the policy's attention is trained"


def test_a_resume_with_frozen_attention_ends_in_the_same_bits(ppo, rewarded):
    straight, resumed = (ppo(freeze="attention", updates=2) for _ in range(2))
    straight.train(rewarded(0))
    saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors())]
    resumed.restore(1, *saved)
    for learner in (straight, resumed):
        learner.train(rewarded(1, seed=1))
    assert same(state(straight), state(resumed))
    with pytest.raises(ModelError, match="resume from the run's own checkpoint"):
        ppo().restore(1, *saved)


def test_a_model_whose_attention_is_not_known_is_refused():
    class Odd(torch.nn.Module):
        family = SimpleNamespace(architecture="OddForCausalLM")

    with pytest.raises(ModelError, match=r"OddForCausalLM is not known by name; set trainer\.critic\.freeze"):
        freeze_attention(Odd())
