"""What ranks that fail leave for the next process, with real processes under torchrun, whose engine only pretends to train."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.errors import TrainingError
from gradbus_trainer.learners.deepspeed.rank_failures import RankFailures

LAB = Path(__file__).with_name("rank_lab.py")
NO_MEMORY = "OutOfMemoryError: no memory for {} bytes"


@pytest.fixture
def failures(tmp_path):
    return RankFailures(tmp_path / "trainer" / "trainer-0.ranks.json")


def test_three_failures_in_the_same_way_end_the_run(failures):
    for size in (100, 200):
        failures.add("run-a", NO_MEMORY.format(size), 4)
        failures.check("run-a")
    failures.add("run-a", NO_MEMORY.format(300), 4)
    with pytest.raises(TrainingError, match=r"3 times in the same way: OutOfMemoryError: no memory for 300 bytes; correct what it names"):
        failures.check("run-a")
    failures.check("run-b")


def test_a_step_in_between_begins_the_count_anew(failures):
    for reached in (4, 4, 5, 5):
        failures.add("run-a", NO_MEMORY.format(1), reached)
    failures.check("run-a")


def test_only_one_run_is_remembered_and_a_torn_file_is_none(failures, tmp_path):
    for _ in range(3):
        failures.add("run-a", NO_MEMORY.format(1), -1)
    failures.add("run-b", NO_MEMORY.format(1), -1)
    failures.check("run-a")
    (tmp_path / "trainer" / "trainer-0.ranks.json").write_text('{"run_id": "run-a", "fail')
    failures.check("run-a")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plan", "cause"),
    [
        ("1 memory", "OutOfMemoryError: this process has too little memory"),
        pytest.param("0 memory", "OutOfMemoryError: this process has too little memory", marks=pytest.mark.slow),
        pytest.param("1 bug", "ValueError: a fault of this rank", marks=pytest.mark.slow),
        pytest.param("1 killed", "", marks=pytest.mark.slow),
    ],
)
def test_the_leader_knows_why_a_rank_failed_by_itself(tmp_path, plan, cause):
    """A rank that is killed cannot say why, and another kill may come from anywhere: it counts against no run."""
    answer = tmp_path / "cause"
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(LAB),
        *plan.split(),
        str(answer),
    ]
    done = subprocess.run(torchrun, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False)
    assert answer.exists(), done.stderr
    kind, _, found = answer.read_text().partition("\n")
    assert kind == "RankLostError"
    assert found.startswith(cause) if cause else found == ""
