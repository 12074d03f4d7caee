"""Steps that read more than tokens, or make more than one update, by DeepSpeed: metrics and weights of the plain learner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from deepspeed_lab import NEEDS_DEEPSPEED, assert_alike, leader, state
from learner_lab import CASES, Plan, checkpoint, deepspeed_spec, make_mixture, make_model

from gradbus_trainer.learners.torch import TorchLearner

pytestmark = NEEDS_DEEPSPEED
LAB = Path(__file__).with_name("learner_lab.py")
BOUND = 1e-4
"""Of each tensor's largest element: what a critic or an earlier update of a step has changed has passed AdamW."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model):
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner

    return lambda spec, folder=model, **settings: DeepSpeedLearner(folder, deepspeed_spec(spec, **settings), leader())


def flat(shown):
    critic = list((shown["critic"] or {}).values())
    return [shown["tokens"], shown["updates"], shown["grad_norm"], *shown["loss"].values(), *shown["ratio"].values(), *critic]


def assert_told_alike(found, expected):
    assert flat(found) == pytest.approx(flat(expected), rel=1e-4, abs=5e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("stage", [0, 3])
def test_a_step_is_the_torch_learners(make, model, stage, name):
    case = CASES[name]
    other, plain = make(case.spec(), zero_stage=stage, micro_batch_tokens=12), TorchLearner(model, case.spec())
    for step in range(3):
        found, expected = (asdict(one.train(case.batch(step), case.coefficients(step))) for one in (other, plain))
        assert_told_alike(found, expected)
    assert_alike(state(other), state(plain), BOUND)


@pytest.mark.parametrize("name", ["V-trace of a model", "several updates", "updates to a bound"])
def test_a_resume_ends_in_the_same_bits(make, name):
    case, settings = CASES[name], {"zero_stage": 3}
    straight = make(case.spec(), **settings)
    for step in range(4):
        if step == 2:
            saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors())]
        straight.train(case.batch(step))
    expected = state(straight)
    resumed = make(case.spec(), **settings)
    resumed.restore(2, *saved)
    for step in range(2, 4):
        resumed.train(case.batch(step))
    found = state(resumed)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("stage", [0, 3])
def test_replayed_routes_are_the_torch_learners(make, tmp_path, stage):
    case, folder = CASES["controllers"], make_mixture(tmp_path)
    spec = case.spec()
    spec = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"routing_replay": True})})
    other, plain, free = make(spec, folder, zero_stage=stage), TorchLearner(folder, spec), TorchLearner(folder, case.spec())
    for step in range(2):
        batch, rng = case.batch(step), np.random.default_rng(step)
        for row in batch.samples:
            size = len(row.prompt_ids) + len(row.token_ids)
            row.routes = np.stack([rng.permutation(16)[:2] for _ in range(size)])[:, None].astype(np.int16)
        found, expected = (asdict(one.train(batch)) for one in (other, plain))
        free.train(batch)
        assert_told_alike(found, expected)
    assert_alike(state(other), state(plain), BOUND)
    assert not torch.equal(free.weights()["model.norm.weight"], plain.weights()["model.norm.weight"]), "the routes are other ones"


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_compute_what_the_torch_learner_computes(model, tmp_path, name):
    case = CASES[name]
    plan = Plan(model=str(model), out=str(tmp_path), case=name, last=3, settings={"zero_stage": 3, "micro_batch_tokens": 12})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(LAB), json.dumps(asdict(plan))]
    environment = os.environ | {"DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    plain = TorchLearner(model, case.spec())
    for step in range(3):
        expected = asdict(plain.train(case.batch(step), case.coefficients(step)))
        assert_told_alike(json.loads((tmp_path / f"{step + 1}.metrics").read_text()), expected)
    weights, optimizer = checkpoint(tmp_path, 3)
    assert_alike({**weights, **optimizer}, state(plain), BOUND)
