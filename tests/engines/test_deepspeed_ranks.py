"""Two ranks of DeepSpeed under torchrun: they compute what one process computes, and die and resume together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from deepspeed_lab import NEEDS_DEEPSPEED
from learner_lab import LORA_SPEC, SPEC, Plan, batch, checkpoint, make_mixture, make_model, make_wide_model

from gradbus.spec import CovarianceClipSpec
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.step.covariance import without_covarying

pytestmark = NEEDS_DEEPSPEED
LAB = Path(__file__).with_name("learner_lab.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(tmp_path, model):
    """Runs a plan on so many ranks; what torchrun said."""

    def start(ranks, fault="", out="out", **plan):
        folder = tmp_path / out
        folder.mkdir(exist_ok=True)
        plan = Plan(**{"model": str(model), "out": str(folder)} | plan)
        environment = os.environ | {"GRADBUS_CRASH_POINT": fault, "GRADBUS_CRASH_DIR": str(folder), "DS_ACCELERATOR": "cpu"}
        return folder, subprocess.run(command(ranks, plan), env=environment, capture_output=True, text=True, timeout=600, check=False)

    return start


def command(ranks, plan):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, str(LAB), json.dumps(asdict(plan))]


@pytest.fixture
def endless(tmp_path, model):
    """Two ranks that train, and the process that launched them."""
    plan = Plan(model=str(model), out=str(tmp_path), last=10_000)
    environment = os.environ | {"GRADBUS_COLLECTIVE_SECONDS": "60", "DS_ACCELERATOR": "cpu"}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command(2, plan), env=environment, stdout=log, stderr=log) as launcher,
    ):
        until((tmp_path / "1.metrics").exists)
        yield launcher, [int((tmp_path / f"rank-{rank}.pid").read_text()) for rank in range(2)]
        launcher.kill()


def metrics(folder, step):
    return json.loads((folder / f"{step}.metrics").read_text())


def assert_alike(tensors, others):
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        scale = float(others[name].abs().max())
        torch.testing.assert_close(tensor, others[name], rtol=0.0, atol=2e-5 * scale, msg=lambda text, name=name: f"{name}: {text}")


def assert_same_bits(folder, other, step):
    for one, two in zip(checkpoint(folder, step), checkpoint(other, step), strict=True):
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []


def flat(shown):
    parts = (shown["loss"], shown["ratio"])
    return [shown["tokens"], shown["learning_rate"], shown["grad_norm"], *(value for part in parts for value in part.values())]


@pytest.mark.parametrize("stage", range(4))
def test_two_ranks_compute_what_the_torch_learner_computes(run, model, stage):
    folder, done = run(2, settings={"zero_stage": stage})
    assert done.returncode == 0, done.stderr
    plain = TorchLearner(model, SPEC)
    for step in range(4):
        expected = asdict(plain.train(batch(step)))
        assert flat(metrics(folder, step + 1)) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
    weights, optimizer = checkpoint(folder, 4)
    assert_alike(weights, plain.weights())
    assert_alike(optimizer, plain.optimizer_tensors())


def test_two_ranks_leave_out_the_tokens_of_high_covariance_that_the_torch_learner_leaves_out(run, model):
    clip = {"share": 0.3, "bounds": [0.01, 5.0]}
    folder, done = run(2, settings={"zero_stage": 2}, covariance_clip=clip)
    assert done.returncode == 0, done.stderr
    plain, whole = TorchLearner(model, SPEC), TorchLearner(model, SPEC)
    for step in range(4):
        found = without_covarying(batch(step), CovarianceClipSpec(**clip), SPEC.seed)
        assert found.share > 0.0
        expected = asdict(plain.train(found.batch))
        assert flat(metrics(folder, step + 1)) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
        whole.train(batch(step))
    weights, _ = checkpoint(folder, 4)
    assert_alike(weights, plain.weights())
    with pytest.raises(AssertionError):
        assert_alike(weights, whole.weights())


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_that_choose_other_experts_compute_what_the_torch_learner_computes(run, tmp_path, stage):
    mixture = make_mixture(tmp_path / "mixture")
    folder, done = run(2, settings={"zero_stage": stage}, model=str(mixture), rows=2, last=2)
    assert done.returncode == 0, done.stderr
    plain = TorchLearner(mixture, SPEC)
    for step in range(2):
        plain.train(Batch(step, batch(step).samples[:2]))
    assert_alike(checkpoint(folder, 2)[0], plain.weights())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_rank_holds_its_shard_and_one_tensor_while_it_loads(run, tmp_path, monkeypatch, dtype):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))  # what is freed then leaves the process at once
    folder, done = run(2, model=str(make_wide_model(tmp_path / "wide")), last=1, measured=True, settings={"zero_stage": 3, "dtype": dtype})
    assert done.returncode == 0, done.stderr
    size = 4 if dtype == "fp32" else 2
    whole, largest = size * (270 << 20) // 4, size * 1024 * 4096
    for rank in range(2):
        memory = json.loads((folder / f"rank-{rank}.memory").read_text())
        assert memory["end"] == pytest.approx(whole / 2, rel=0.1), "the shard is in memory"
        assert memory["most"] < memory["end"] + 1.2 * largest, memory


@pytest.mark.parametrize("settings", [{"zero_stage": 2}, {"zero_stage": 3}], ids=str)
def test_two_ranks_train_the_adapters_that_the_torch_learner_trains(run, model, settings):
    """At 12 tokens a micro-batch the ranks have unlike many rows, and go through the base for each piece together."""
    settings = settings | {"micro_batch_tokens": 12}
    folder, done = run(2, lora=True, settings=settings)
    assert done.returncode == 0, done.stderr
    plain = TorchLearner(model, LORA_SPEC)
    for step in range(4):
        expected = asdict(plain.train(batch(step)))
        assert flat(metrics(folder, step + 1)) == pytest.approx(flat(expected), rel=2e-5, abs=2e-6)
    weights, optimizer = checkpoint(folder, 4)
    assert_alike(weights, plain.weights())
    assert_alike(optimizer, plain.optimizer_tensors())
    _, again = run(2, first=2, lora=True, settings=settings, out="out")
    assert again.returncode == 0, again.stderr
    for one, other in zip(checkpoint(folder, 4), (weights, optimizer), strict=True):
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_rank_without_rows_takes_part(run, model):
    folder, done = run(2, rows=1, last=2, settings={"zero_stage": 3})
    assert done.returncode == 0, done.stderr
    plain = TorchLearner(model, SPEC)
    for step in range(2):
        plain.train(Batch(step, batch(step).samples[:1]))
    assert_alike(checkpoint(folder, 2)[0], plain.weights())


@pytest.mark.parametrize("settings", [{"zero_stage": 2}, {"zero_stage": 3}, {"zero_stage": 3, "dtype": "bf16"}], ids=str)
def test_a_rank_that_dies_in_mid_step_ends_all_and_they_resume_to_the_same_bits(run, settings):
    settings = settings | {"micro_batch_tokens": 12}  # three backward passes a step and rank, so the fifth is in the middle of the second
    straight, done = run(2, out="straight", settings=settings)
    assert done.returncode == 0, done.stderr
    folder, broken = run(2, fault="mid-step-1:5", out="broken", settings=settings)
    assert broken.returncode != 0
    saved = max(int(path.stem) for path in folder.glob("*.optimizer"))
    assert 0 < saved < 4
    _, resumed = run(2, first=saved, out="broken", settings=settings)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_bits(folder, straight, 4)


def test_a_checkpoint_of_two_ranks_resumes_on_one_and_on_three(run):
    folder, done = run(2, last=2, settings={"zero_stage": 2})
    assert done.returncode == 0, done.stderr
    expected = None
    for ranks in (1, 3):
        _, done = run(ranks, first=2, last=3, settings={"zero_stage": 3})
        assert done.returncode == 0, done.stderr
        weights, _ = checkpoint(folder, 3)
        assert_alike(weights, expected or weights)
        expected = weights


def test_a_launcher_that_is_killed_takes_its_ranks_along(endless):
    launcher, ranks = endless
    launcher.kill()
    until(lambda: not any(lives(pid) for pid in ranks))


def test_a_rank_that_hangs_ends_all_within_the_deadline(endless, tmp_path):
    launcher, ranks = endless
    os.kill(ranks[1], signal.SIGSTOP)
    assert launcher.wait(200) != 0
    assert "RankLostError" in (tmp_path / "log").read_text()
    assert not any(lives(pid) for pid in ranks)


def lives(pid):
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
