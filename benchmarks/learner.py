"""CPU milliseconds of one optimiser step of the plain torch learner, and its phases.

    OMP_NUM_THREADS=1 python benchmarks/learner.py [--size demo|5m|27m|60m|150m] [--dtype fp32|bf16] [--steps 60]

The learner of the trainer service, with one thread, on steps of random tokens: of the demo 32 groups of 8, prompts of 6 tokens and
responses of 4, else the groups, prompts and responses of `compare_trl.py`. CPU is that of the whole process; phases are shares of
wall time.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np
from compare_trl import DEMO, make_base
from comparison import models
from gradbus_run import addition_spec

from gradbus.spec import RunSpec
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch, TrainSample

_ROWS: Final = {DEMO: (32, 8, 6, 4)}
"""Groups, samples of a group, tokens of a prompt and of a response."""
_USUAL: Final = (models.GROUPS, models.GROUP_SIZE, 64, models.NEW_TOKENS)
_VOCABULARY: Final = 50
_WARM: Final = 5


def spec(size: str, dtype: str, steps: int) -> tuple[Path, RunSpec]:
    """The base model's folder, and the spec by which `compare_trl.py` trains it."""
    if size == DEMO:
        base = make_base(0)
        return base, RunSpec.model_validate(addition_spec(base, steps, 0, steps, dtype))
    base = models.make(size)
    sections = models.run_spec(base, steps, 0, dtype)
    return base, RunSpec.model_validate(sections | {"trainer": sections["trainer"] | {"threads": 1}})


def batch(step: int, groups: int, group_size: int, prompt: int, response: int) -> Batch:
    """Groups with random tokens; one response in 32 is a token shorter."""
    rng = np.random.default_rng(step)
    samples = []
    for _ in range(groups):
        question = rng.integers(_VOCABULARY, size=prompt).astype(np.int32)
        for _ in range(group_size):
            length = response - int(rng.random() < 1 / 32)
            tokens = rng.integers(_VOCABULARY, size=length).astype(np.int32)
            behaviour = rng.normal(-4.0, 0.6, length).astype(np.float32)
            samples.append(TrainSample(question, tokens, behaviour, np.ones(length, np.bool_), np.full(length, rng.normal(), np.float32)))
    return Batch(step, samples)


def measure(size: str, dtype: str, steps: int) -> tuple[float, dict[str, float]]:
    """Median CPU milliseconds of a step, and the median share of each phase, without the first steps."""
    base, settings = spec(size, dtype, _WARM + steps)
    learner, rows = TorchLearner(base / "model", settings), _ROWS.get(size, _USUAL)
    spent, phases = [], defaultdict(list)
    for step in range(_WARM + steps):
        made = batch(step, *rows)
        began = process_time()
        metrics = learner.train(made)
        if step >= _WARM:
            spent.append(1e3 * (process_time() - began))
            walls: Counter[str] = Counter()
            for phase in metrics.phases:
                walls[phase.name] += phase.ended - phase.began
            for name, wall in walls.items():
                phases[name].append(wall / walls.total())
    return statistics.median(spent), {name: statistics.median(shares) for name, shares in phases.items()}


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(description="Measures one optimiser step of the plain torch learner.")
    parser.add_argument("--size", choices=(DEMO, *models.SHAPES), default=DEMO)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    milliseconds, phases = measure(options.size, options.dtype, options.steps)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in phases.items())
    print(f"{options.size}, {options.dtype}: {milliseconds:.2f} ms of CPU a step; {shares}")


if __name__ == "__main__":
    main()
