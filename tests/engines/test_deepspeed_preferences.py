"""Runs on pairs and labels by DeepSpeed: the plain learner's loss, metrics and weights, though ranks share out the rows of a pair."""

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
from learner_lab import Plan, checkpoint, deepspeed_spec, kind_spec, make_model, pair_batch

from gradbus_trainer.learners.torch import TorchLearner

pytestmark = NEEDS_DEEPSPEED
LAB = Path(__file__).with_name("learner_lab.py")
KINDS = ("dpo", "ipo", "simpo", "orpo", "kto")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model):
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner

    return lambda spec, **settings: DeepSpeedLearner(model, deepspeed_spec(spec, **settings), leader())


def flat(shown):
    values = [*shown["loss"].values(), *(value for value in shown["preference"].values() if value is not None)]
    return [shown["tokens"], shown["updates"], shown["grad_norm"], *values]


def assert_equal_steps(make, model, spec, stage):
    """Three steps of DeepSpeed's learner beside the plain one's."""
    other, plain = make(spec, zero_stage=stage), TorchLearner(model, spec)
    for step in range(3):
        found, expected = (asdict(learner.train(pair_batch(step))) for learner in (other, plain))
        assert flat(found) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
    assert_alike(state(other), state(plain))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_step_is_the_torch_learners(make, model, stage, kind):
    assert_equal_steps(make, model, kind_spec(kind), stage)


@pytest.mark.parametrize("kind", ["dpo", "kto"])
@pytest.mark.parametrize("stage", [2, 3])
def test_adapters_compare_with_the_model_without_them(make, model, stage, kind):
    assert_equal_steps(make, model, kind_spec(kind, lora={"rank": 3, "alpha": 6.0}), stage)


@pytest.mark.parametrize("kind", ["dpo", "kto"])
@pytest.mark.parametrize("settings", [{"zero_stage": 3}, {"zero_stage": 2, "dtype": "bf16"}], ids=str)
def test_a_resume_ends_in_the_same_bits(make, kind, settings):
    straight, resumed = make(kind_spec(kind), **settings), None
    for step in range(4):
        if step == 2:
            saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors())]
        straight.train(pair_batch(step))
    expected = state(straight)
    resumed = make(kind_spec(kind), **settings)
    resumed.restore(2, *saved)
    for step in range(2, 4):
        resumed.train(pair_batch(step))
    found = state(resumed)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize(("ranks", "kind"), [(2, "dpo"), (2, "kto"), (3, "orpo")])
def test_ranks_that_share_out_a_pair_compute_what_one_process_computes(model, tmp_path, ranks, kind):
    """Of three ranks over eight rows, some have one response of a pair and not the other."""
    plan = Plan(model=str(model), out=str(tmp_path), kind=kind, settings={"zero_stage": 3, "micro_batch_tokens": 12})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(LAB)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu"}
    done = subprocess.run([*command, json.dumps(asdict(plan))], env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    plain = TorchLearner(model, kind_spec(kind))
    for step in range(4):
        expected = asdict(plain.train(pair_batch(step)))
        found = json.loads((tmp_path / f"{step + 1}.metrics").read_text())
        assert flat(found) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
    weights, optimizer = checkpoint(tmp_path, 4)
    assert_alike({**weights, **optimizer}, state(plain))
