"""PPO by DeepSpeed: critic and policy are those of the plain learner, and a resume ends in the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from deepspeed_lab import NEEDS_DEEPSPEED, assert_alike, leader, state
from learner_lab import SPEC, Plan, batch, checkpoint, deepspeed_spec, make_model, ppo_spec

from gradbus.errors import ModelError
from gradbus_trainer.learners.torch import TorchLearner

pytestmark = NEEDS_DEEPSPEED
LAB = Path(__file__).with_name("learner_lab.py")
HEAD = {"kind": "head", "learning_rate": 1e-2, "warmup_steps": 1, "updates": 2}
FULL = {"kind": "full", "learning_rate": 1e-2, "warmup_steps": 1}
LORA = {"kind": "lora", "rank": 2, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model):
    """A learner on one rank; keywords are DeepSpeed's settings and the trainer's."""
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner

    return lambda critic, **settings: DeepSpeedLearner(model, deepspeed_spec(ppo_spec(SPEC, critic), **settings), leader())


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def flat(shown):
    """Numbers of a step's metrics, as `asdict` gives them."""
    parts = [shown["loss"], shown["ratio"], shown["critic"]]
    return [shown["noop"], shown["tokens"], shown["updates"], shown["grad_norm"], *(value for part in parts for value in part.values())]


@pytest.mark.parametrize("critic", [HEAD, FULL, LORA], ids=lambda critic: critic["kind"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_critic_and_policy_are_those_of_the_torch_learner(make, model, stage, critic):
    other, plain = make(critic, zero_stage=stage), TorchLearner(model, ppo_spec(SPEC, critic))
    for step in range(4):
        found, expected = (asdict(learner.train(batch(step))) for learner in (other, plain))
        assert flat(found) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
        assert_alike(state(other), state(plain))
    assert {name.partition(".")[0] for name in other.optimizer_tensors()} >= {"critic"}, "one checkpoint for both"


@pytest.mark.parametrize("critic", [HEAD, FULL], ids=lambda critic: critic["kind"])
@pytest.mark.parametrize("settings", [{"zero_stage": 0}, {"zero_stage": 3}, {"zero_stage": 2, "dtype": "bf16"}], ids=str)
@pytest.mark.parametrize("at", [0, 1, 3], ids=["before the warm-up", "after the warm-up", "later"])
def test_a_resume_ends_in_the_same_bits(make, critic, settings, at):
    straight = make(critic, **settings)
    for step in range(5):
        if step == at:
            saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors())]
        straight.train(batch(step))
    expected = state(straight)
    resumed = make(critic, **settings)
    resumed.restore(at, *saved)
    for step in range(at, 5):
        resumed.train(batch(step))
    assert differing(state(resumed), expected) == []


def test_a_warm_up_leaves_the_policy_and_its_moments_alone(make):
    learner = make(HEAD | {"warmup_steps": 2}, zero_stage=2)
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    for step in range(2):
        metrics = learner.train(batch(step))
        assert (metrics.noop, metrics.updates, metrics.critic is None) == (True, 0, False)
    assert differing({name: tensor.clone() for name, tensor in learner.weights().items()}, before) == []
    assert all(name.startswith("critic.") for name in learner.optimizer_tensors())
    assert not learner.train(batch(2)).noop


def test_a_checkpoint_goes_from_the_torch_learner_to_deepspeed_and_back(make, model):
    plain, other = TorchLearner(model, ppo_spec(SPEC, FULL)), make(FULL, zero_stage=3)
    for step in range(3):
        plain.train(batch(step))
    other.restore(3, plain.weights(), plain.optimizer_tensors())
    assert differing(state(other), state(plain)) == []
    other.train(batch(3))
    again = TorchLearner(model, ppo_spec(SPEC, FULL))
    again.restore(4, other.weights(), other.optimizer_tensors())
    assert differing(state(again), state(other)) == []


def test_a_checkpoint_without_a_critic_and_one_of_another_kind_are_refused(make, model):
    learner, without = make(HEAD, zero_stage=2), TorchLearner(model, SPEC)
    without.train(batch(0))
    with pytest.raises(ModelError, match="a trained policy and no critic"):
        learner.restore(1, without.weights(), without.optimizer_tensors())
    full = TorchLearner(model, ppo_spec(SPEC, FULL))
    full.train(batch(0))
    with pytest.raises(ModelError, match="another model"):
        learner.restore(1, full.weights(), full.optimizer_tensors())
    assert learner.train(batch(0)).critic is not None, "the ranks still agree"


def run(ranks, out, fault="", **plan):
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(LAB)]
    environment = os.environ | {"GRADBUS_CRASH_POINT": fault, "GRADBUS_CRASH_DIR": str(out), "DS_ACCELERATOR": "cpu"}
    command.append(json.dumps(asdict(Plan(out=str(out), **plan))))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(("stage", "critic", "bound"), [(2, HEAD, 2e-5), (3, HEAD, 2e-5), (3, FULL, 1e-4)], ids=str)
def test_two_ranks_compute_what_the_torch_learner_computes(model, tmp_path, stage, critic, bound):
    """Advantages from a whole critic have passed AdamW twice, which divides by small numbers."""
    plan = {"model": str(model), "critic": critic, "settings": {"zero_stage": stage, "micro_batch_tokens": 12}}
    done = run(2, tmp_path / "out", **plan)
    assert done.returncode == 0, done.stderr
    plain = TorchLearner(model, ppo_spec(SPEC, critic))
    for step in range(4):
        expected = asdict(plain.train(batch(step)))
        found = json.loads((tmp_path / "out" / f"{step + 1}.metrics").read_text())
        assert flat(found) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
    weights, optimizer = checkpoint(tmp_path / "out", 4)
    assert_alike({**weights, **optimizer}, state(plain), bound)


def test_two_ranks_that_die_between_critic_and_policy_resume_to_the_same_bits(model, tmp_path):
    plan = {"model": str(model), "critic": HEAD, "settings": {"zero_stage": 3}}
    done = run(2, tmp_path / "straight", **plan)
    assert done.returncode == 0, done.stderr
    broken = run(2, tmp_path / "broken", fault="between-critic-and-policy:3", **plan)
    assert broken.returncode != 0
    saved = max(int(path.stem) for path in (tmp_path / "broken").glob("*.optimizer"))
    assert saved == 2, "the third step's critic was updated, and nothing of it stays"
    resumed = run(2, tmp_path / "broken", first=saved, **plan)
    assert resumed.returncode == 0, resumed.stderr
    for one, other in zip(checkpoint(tmp_path / "broken", 4), checkpoint(tmp_path / "straight", 4), strict=True):
        assert differing(one, other) == []
