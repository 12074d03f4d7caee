"""A critic of adapters: what it trains, whose memory its frozen weights take, and what it leaves alone."""

import pytest
import torch

from gradbus.spec import CriticSpec, LoraSpec

from .conftest import same, state


def test_the_defaults_are_those_of_a_policys_adapters():
    assert CriticSpec(kind="lora").adapters == LoraSpec()
    assert CriticSpec(kind="lora", rank=4).adapters.scale == LoraSpec().scale
    assert CriticSpec().adapters is CriticSpec(kind="head").adapters is None


def test_only_adapters_and_head_are_trained_and_stored(ppo, rewarded):
    learner = ppo(kind="lora", rank=2, learning_rate=1e-2)
    frozen = {name: weight.clone() for name, weight in learner._critic.states.model.named_parameters() if not weight.requires_grad}
    for step in range(2):
        learner.train(rewarded(step, seed=step))
    for name, weight in learner._critic.states.model.named_parameters():
        assert weight.requires_grad == ("lora_" in name)
        assert weight.requires_grad or torch.equal(weight, frozen[name])
    stored = {name for name in learner.optimizer_tensors() if name.startswith("critic.")}
    assert stored
    assert all("lora_" in name or "value_head" in name for name in stored)


@pytest.mark.parametrize("lora", [{"rank": 2}, None], ids=["a policy of adapters", "a whole policy"])
def test_frozen_weights_take_the_policys_memory_where_it_does_not_move_them(ppo, rewarded, lora):
    learner = ppo({} if lora is None else {"lora": lora}, kind="lora", rank=2)
    policy, critic = (dict(model.named_parameters()) for model in (learner._model, learner._critic.states.model))
    own = {name for name, weight in critic.items() if "lora_" not in name}
    assert {name for name in own if critic[name].data_ptr() == policy[name].data_ptr()} == (own if lora else set())
    before = state(learner)
    learner.train(rewarded(0))
    moved = {name for name, tensor in state(learner).items() if name in before and not torch.equal(tensor, before[name])}
    assert moved, "the policy's own"
    assert all(critic[name].data_ptr() != policy[name].data_ptr() for name in critic if "lora_" in name and name in policy)


def test_a_release_and_a_resume_with_shared_weights_change_no_bit(ppo, rewarded):
    kept, moved = (ppo({"lora": {"rank": 2}}, kind="lora", rank=2) for _ in range(2))
    for learner in (kept, moved):
        learner.train(rewarded(0))
    moved.release()
    moved.resume()
    for learner in (kept, moved):
        learner.train(rewarded(1, seed=1))
    assert same(state(kept), state(moved))
