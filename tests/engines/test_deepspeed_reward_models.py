"""Reward models by DeepSpeed: the plain learner's scores, loss and weights, though ranks share out the rows of a pair."""

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
from learner_lab import Plan, checkpoint, deepspeed_spec, kind_spec, make_model, make_scorer, pair_batch

from gradbus.errors import ModelError, TrainingError
from gradbus_kernels.models.reward.model import load_reward_model
from gradbus_trainer.learners.reward_model import RewardModelLearner

pytestmark = NEEDS_DEEPSPEED
LAB = Path(__file__).with_name("learner_lab.py")
SPEC = kind_spec("reward_model")
BUDGETS = {"one pass": 16384, "two passes": 12}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_scorer(tmp_path_factory.mktemp("scorer"))


@pytest.fixture
def make(model):
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner

    return lambda **settings: DeepSpeedLearner(model, deepspeed_spec(SPEC, **settings), leader())


def flat(shown):
    return [shown["tokens"], shown["updates"], shown["grad_norm"], shown["loss"]["total"], *shown["preference"].values()]


def saved(learner):
    return [{name: tensor.clone() for name, tensor in part.items()} for part in (learner.weights(), learner.optimizer_tensors())]


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_is_the_plain_learners(make, model, stage, budget):
    tokens = {"micro_batch_tokens": BUDGETS[budget]}
    trainer = SPEC.trainer.model_copy(update=tokens)
    other, plain = make(zero_stage=stage, **tokens), RewardModelLearner(model, SPEC.model_copy(update={"trainer": trainer}))
    assert other.trained_parameters == plain.trained_parameters
    for step in range(4):
        found, expected = (asdict(learner.train(pair_batch(step))) for learner in (other, plain))
        assert flat(found) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
    assert_alike(state(other), state(plain))
    assert "score.weight" in other.weights()


def test_one_rank_without_zero_has_the_plain_learners_bits(make, model):
    other, plain = make(zero_stage=0), RewardModelLearner(model, SPEC)
    for step in range(3):
        assert flat(asdict(other.train(pair_batch(step)))) == flat(asdict(plain.train(pair_batch(step))))
    assert differing(state(other), state(plain)) == []


@pytest.mark.parametrize("settings", [{"zero_stage": 0}, {"zero_stage": 2, "offload": "optimizer"}, {"zero_stage": 3}], ids=str)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_resume_ends_in_the_same_bits(make, settings, checkpointing):
    straight = make(gradient_checkpointing=checkpointing, **settings)
    for step in range(4):
        if step == 2:
            middle = saved(straight)
        straight.train(pair_batch(step))
    expected = state(straight)
    resumed = make(gradient_checkpointing=checkpointing, **settings)
    resumed.restore(2, *middle)
    for step in range(2, 4):
        resumed.train(pair_batch(step))
    assert differing(state(resumed), expected) == []


def test_a_checkpoint_goes_from_the_plain_learner_to_deepspeed_and_back(make, model):
    plain, other = RewardModelLearner(model, SPEC), make(zero_stage=3)
    for step in range(3):
        plain.train(pair_batch(step))
    other.restore(3, plain.weights(), plain.optimizer_tensors())
    assert differing(state(other), state(plain)) == []
    other.train(pair_batch(3))
    again = RewardModelLearner(model, SPEC)
    again.restore(4, *saved(other))
    assert differing(state(again), state(other)) == []


def test_its_weights_are_those_of_a_folder_that_scores(make, model, tmp_path):
    """A version's file is the folder's weights: what it scores is what the run reports of the next step."""
    from safetensors.torch import save_file

    learner = make(zero_stage=3)
    for step in range(3):
        learner.train(pair_batch(step))
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    save_file(saved(learner)[0], tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        chosen, rejected = load_reward_model(tmp_path)(pair_batch(3).samples).view(-1, 2).mean(0).tolist()
    found = learner.train(pair_batch(3)).preference
    assert (found.chosen, found.rejected) == pytest.approx((chosen, rejected), rel=1e-4, abs=1e-6)


def test_a_gradient_that_is_no_number_changes_nothing(make):
    learner = make(zero_stage=2)
    learner.train(pair_batch(0))
    weights, moments = saved(learner)
    learner.restore(1, weights | {"score.weight": torch.full_like(weights["score.weight"], 3e38)}, moments)
    before = state(learner)
    with pytest.raises(TrainingError, match="step 1 is not finite"):
        learner.train(pair_batch(1))
    assert differing(state(learner), before) == []
    learner.restore(1, weights, moments)
    assert not learner.train(pair_batch(1)).noop


def test_memory_given_back_in_between_changes_no_bit(make):
    straight = make(zero_stage=3)
    for step in range(3):
        straight.train(pair_batch(step))
    expected = state(straight)
    turns = make(zero_stage=3)
    for step in range(3):
        turns.train(pair_batch(step))
        turns.release()
        turns.resume()
    assert differing(state(turns), expected) == []


@pytest.mark.parametrize("stage", [0, 3])
def test_a_language_model_is_refused_and_nothing_is_compared(make, tmp_path, stage):
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner

    with pytest.raises(ModelError, match="no reward model"):
        DeepSpeedLearner(make_model(tmp_path), deepspeed_spec(SPEC, zero_stage=stage), leader())
    with pytest.raises(TrainingError, match="no log-probabilities"):
        make(zero_stage=stage).probe()


def run(ranks, out, fault="", **plan):
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(LAB)]
    environment = os.environ | {"GRADBUS_CRASH_POINT": fault, "GRADBUS_CRASH_DIR": str(out), "DS_ACCELERATOR": "cpu"}
    command.append(json.dumps(asdict(Plan(out=str(out), kind="reward_model", **plan))))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(("ranks", "budget"), [(2, "one pass"), (2, "two passes"), (3, "two passes")])
def test_ranks_that_share_out_a_pair_compute_what_one_process_computes(model, tmp_path, ranks, budget):
    """Of three ranks over eight rows, some have one response of a pair and not the other."""
    done = run(ranks, tmp_path / "out", model=str(model), settings={"zero_stage": 3, "micro_batch_tokens": BUDGETS[budget]})
    assert done.returncode == 0, done.stderr
    plain = RewardModelLearner(model, SPEC)
    for step in range(4):
        expected = asdict(plain.train(pair_batch(step)))
        found = json.loads((tmp_path / "out" / f"{step + 1}.metrics").read_text())
        assert flat(found) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
    weights, optimizer = checkpoint(tmp_path / "out", 4)
    assert_alike({**weights, **optimizer}, state(plain))


def test_two_ranks_that_die_within_a_step_resume_to_the_same_bits(model, tmp_path):
    plan = {"model": str(model), "settings": {"zero_stage": 3, "micro_batch_tokens": 12}}
    assert run(2, tmp_path / "straight", **plan).returncode == 0
    pieces = 3  # of each rank, at most: the crash is within the second step or the third
    assert run(2, tmp_path / "broken", fault=f"mid-step-1:{2 * pieces}", **plan).returncode != 0
    reached = max(int(path.stem) for path in (tmp_path / "broken").glob("*.optimizer"))
    assert 0 < reached < 4
    resumed = run(2, tmp_path / "broken", first=reached, **plan)
    assert resumed.returncode == 0, resumed.stderr
    for one, other in zip(checkpoint(tmp_path / "broken", 4), checkpoint(tmp_path / "straight", 4), strict=True):
        assert differing(one, other) == []
