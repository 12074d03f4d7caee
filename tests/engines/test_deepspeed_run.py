"""The copying task through the whole stack with DeepSpeed as the trainer, beside the same run with plain torch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from ledger import check, read_ledger
from run_lab import easier, events, learned, rewards
from smoke import make_example, smoke_spec, train
from transformers import AutoModelForSequenceClassification

from gradbus.client import Client
from gradbus.embedded import Stack, StackConfig, StateFolder
from gradbus_kernels.models.reward.model import load_reward_model
from gradbus_trainer.step.batch import TrainSample

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs what `make test-engines` installs"),
]
STEPS = 40
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gradbus_trainer"]
LAYOUT = '[[trainers]]\ndevices = ["cpu", "cpu"]\n[[rollouts]]\ndevices = ["cpu"]\n'


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("example"))


def spec_of(example, steps=STEPS, **trainer):
    return easier(smoke_spec(example, trainer=trainer, rollout={"group_size": 8}, schedule={"steps": steps}))


def stack_of(folder, **overrides):
    return Stack(StackConfig(state=folder / "state", port=0, ready_seconds=300.0, **overrides))


async def test_one_rank_without_zero_ends_in_the_torch_learners_weights_bit_for_bit(tmp_path, example):
    async with stack_of(tmp_path) as stack:
        found = {}
        for backend in ({}, {"backend": "deepspeed", "deepspeed": {"zero_stage": 0}}):
            outcome = await train(stack, spec_of(example, **backend), seconds=900)
            assert (outcome.state, outcome.steps) == ("succeeded", STEPS)
            found[outcome.digest] = await rewards(stack, outcome.run_id)
    assert len(found) == 1
    (shown,) = found.values()
    learned(shown)


async def test_a_run_of_clip_cov_ends_in_the_torch_learners_weights_bit_for_bit(tmp_path, example):
    algorithm = {"name": "clip_cov", "covariance_clip": {"share": 0.01, "bounds": [0.1, 5.0]}}
    async with stack_of(tmp_path) as stack:
        found = {}
        for backend in ({}, {"backend": "deepspeed", "deepspeed": {"zero_stage": 0}}):
            outcome = await train(stack, spec_of(example, 10, **backend) | {"algorithm": algorithm}, seconds=900)
            assert (outcome.state, outcome.steps) == ("succeeded", 10)
            found[outcome.digest] = [step["covariance_clipped"] for step in await events(stack, outcome.run_id, "metrics")]
    assert len(found) == 1
    (shares,) = found.values()
    assert any(0.0 < share <= 0.01 for share in shares)


async def test_two_ranks_reach_the_torch_learners_reward(tmp_path, example):
    settings = {"backend": "deepspeed", "deepspeed": {"zero_stage": 2}}
    async with stack_of(tmp_path / "one") as stack:
        plain = await train(stack, spec_of(example), seconds=900)
        expected = learned(await rewards(stack, plain.run_id))
    async with stack_of(tmp_path / "two", command_overrides={"trainer-0": TWO_RANKS}) as stack:
        outcome = await train(stack, spec_of(example, **settings), seconds=900)
        assert (outcome.state, outcome.steps) == ("succeeded", STEPS)
        shown = learned(await rewards(stack, outcome.run_id))
        assert check(read_ledger(stack.state.root, outcome.run_id), 16, STEPS, 1, fixed_lag=True) == []
    assert shown > 0.75 * expected


def ranking_spec(example, folder, **trainer):
    """A run that learns to score the right copy above the digits in another order."""
    rows = [json.loads(line) for line in (example / "train.jsonl").read_text().splitlines()[:96]]
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"][::-1]} for row in rows]
    lines = [json.dumps(pair) for pair in pairs if pair["chosen"] != pair["rejected"]]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "name": "ranks",
        "kind": "reward_model",
        "model": {"path": str(example / "model")},
        "data": {"train": str(folder / "pairs.jsonl")},
        "schedule": {"groups_per_step": 8, "steps": 8},
        "trainer": {"learning_rate": 1e-3, "micro_batch_tokens": 64} | trainer,
        "checkpoint": {"every": 4, "keep": 100},
    }


async def losses(stack, run_id):
    return [event["loss"] for event in await events(stack, run_id, "metrics")]


async def test_a_reward_model_by_ranks_is_plain_torchs_and_its_export_scores_in_transformers(tmp_path, example):
    without_zero = {"backend": "deepspeed", "deepspeed": {"zero_stage": 0}}
    async with stack_of(tmp_path / "one") as stack:
        plain, alone = [await train(stack, ranking_spec(example, tmp_path, **backend), seconds=900) for backend in ({}, without_zero)]
        assert (plain.state, plain.steps) == ("succeeded", 8)
        assert alone.digest == plain.digest
        expected = await losses(stack, plain.run_id)
    async with stack_of(tmp_path / "two", command_overrides={"trainer-0": TWO_RANKS}) as stack:
        spec = ranking_spec(example, tmp_path, backend="deepspeed", deepspeed={"zero_stage": 3})
        outcome = await train(stack, spec, seconds=900)
        assert (outcome.state, outcome.steps) == ("succeeded", 8)
        assert await losses(stack, outcome.run_id) == pytest.approx(expected, rel=1e-4)
        with Client(stack.url, stack.api_key) as client:
            await asyncio.to_thread(client.export, outcome.run_id, tmp_path / "export")
    exported, again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export"), load_reward_model(tmp_path / "export")
    ids, empty = np.arange(1, 7, dtype=np.int32), np.zeros(3, np.float32)
    with torch.no_grad():
        score = again([TrainSample(ids[:3], ids[3:], empty, empty > 0, empty)])
        torch.testing.assert_close(exported(torch.from_numpy(ids).long()[None]).logits[:, 0], score, rtol=1e-4, atol=1e-5)
    assert expected[-1] < expected[0]


async def test_a_rank_that_is_killed_brings_all_back_and_the_run_ends_in_the_same_weights(tmp_path, example):
    spec = spec_of(example, steps=30, backend="deepspeed", deepspeed={"zero_stage": 2})
    digests = set()
    for name in ("straight", "killed"):
        async with stack_of(tmp_path / name, command_overrides={"trainer-0": TWO_RANKS}) as stack:
            run = asyncio.create_task(train(stack, spec, seconds=900))
            if name == "killed":
                os.kill(await follower(stack), signal.SIGKILL)
            outcome = await run
            assert (outcome.state, outcome.steps) == ("succeeded", 30)
            digests.add(outcome.digest)
            restarts = stack.processes["trainer-0"].restarts
    assert (len(digests), restarts) == (1, 1)


async def follower(stack):
    """Process id of rank 1, once the run has a checkpoint."""
    async with asyncio.timeout(600):
        while not list(stack.state.objects.glob("runs/*/checkpoints/*")):  # noqa: ASYNC110 - another process's work
            await asyncio.sleep(0.1)
    return rank_one(stack.processes["trainer-0"].pid)


def rank_one(launcher):
    return next(child.pid for child in psutil.Process(launcher).children() if child.environ()["RANK"] == "1")


def gradbus(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(
        [sys.executable, "-m", "gradbus.cli", *arguments], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_gradbus_up_starts_two_ranks_from_a_layout_and_nothing_else(tmp_path, example):
    (tmp_path / "layout.toml").write_text(LAYOUT)
    state = StateFolder(tmp_path / "state")
    up = ("up", "--state", str(state.root), "--port", "0", "--layout", str(tmp_path / "layout.toml"), "--detach", "--json")
    url = json.loads(gradbus(*up).splitlines()[-1])["url"]
    try:
        trainer = psutil.Process(json.loads((state.root / "stack.json").read_text())["processes"]["trainer-0"]["pid"])
        assert sorted(rank.environ()["RANK"] for rank in trainer.children()) == ["0", "1"]
        assert {rank.environ()["GRADBUS_DEVICE"] for rank in trainer.children()} == {"cpu"}
        settings = {"trainer": {"backend": "deepspeed", "deepspeed": {"zero_stage": 2}}, "schedule": {"steps": 4}}
        spec = smoke_spec(example, **settings, evaluation={"every": 4})
        stack = SimpleNamespace(url=url, api_key=state.api_key_file.read_text().strip())
        outcome = await train(stack, spec, seconds=400)
        assert (outcome.state, outcome.steps) == ("succeeded", 4)
    finally:
        gradbus("down", "--state", str(state.root))
