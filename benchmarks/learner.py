"""CPU milliseconds of one optimiser step of the plain torch learner, by phase, for the demo's model and for one of 27 M parameters.

python benchmarks/learner.py [--steps 60] [--only demo]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_
from transformers import LlamaConfig, LlamaForCausalLM

from gradbus.algorithms import algorithm_of
from gradbus.spec import RunSpec
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_kernels.models.packing import pack
from gradbus_kernels.operators import linear_grpo_loss, token_weights
from gradbus_trainer.learners.loss_inputs import policy_settings, policy_tokens
from gradbus_trainer.learners.optimizer import AdamW
from gradbus_trainer.step.batch import TrainSample


@dataclass(frozen=True)
class Case:
    """A model and the lengths of a step's rows."""

    model: dict[str, Any]
    groups: int
    group_size: int
    prompt: int
    response: int


CASES = {
    "demo": Case(
        {"vocab_size": 56, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
        *(32, 8, 6, 4),
    ),
    "27 M": Case(
        {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8},
        *(4, 4, 64, 32),
    ),
}
SPEC = RunSpec.model_validate(
    {
        "name": "learner",
        "model": {"path": "m"},
        "data": {"train": "t"},
        "reward": {"service": "grpc://localhost:1"},
        "schedule": {"steps": 1000},
        "algorithm": {"entropy": 0.003},
        "trainer": {"learning_rate": 1e-4},
    }
)


class Phases:
    """CPU seconds of each phase, step by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measures the block, with what it leaves to other threads."""
        began = time.process_time()
        yield
        self.seconds[name].append(time.process_time() - began)

    def medians(self) -> dict[str, float]:
        """CPU milliseconds, without the first fifth of the steps."""
        return {name: 1e3 * statistics.median(found[len(found) // 5 :]) for name, found in self.seconds.items()}


def rows(case: Case, step: int) -> list[TrainSample]:
    """Groups with random tokens; one response in 32 is a token shorter."""
    rng = np.random.default_rng(step)
    vocabulary = case.model["vocab_size"]
    found = []
    for _ in range(case.groups):
        prompt = rng.integers(vocabulary, size=case.prompt).astype(np.int32)
        for _ in range(case.group_size):
            length = case.response - int(rng.random() < 1 / 32)
            tokens = rng.integers(vocabulary, size=length).astype(np.int32)
            behaviour = rng.normal(-4.0, 0.6, length).astype(np.float32)
            found.append(TrainSample(prompt, tokens, behaviour, np.ones(length, np.bool_), np.full(length, rng.normal(), np.float32)))
    return found


def measure(case: Case, steps: int) -> dict[str, float]:
    """Medians of the phases."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(**case.model, max_position_embeddings=256, tie_word_embeddings=True)).save_pretrained(folder)
        model = load_causal_lm(Path(folder))
    loss = algorithm_of(SPEC.algorithm).loss
    settings, optimizer, phase = policy_settings(loss), AdamW(dict(model.named_parameters()), SPEC.trainer), Phases()
    for step in range(steps):
        samples = rows(case, step)
        counts = [len(sample.token_ids) for sample in samples]
        with phase("step"):
            with phase("loss inputs"):
                tokens = policy_tokens(samples, token_weights(counts, loss.aggregate), sum(counts), model.device)
            with phase("packing"):
                batch = pack(samples, model.device)
            with phase("forward"):
                hidden = model(batch).index_select(0, batch.selected)
            with phase("loss with the head"):
                outcome = linear_grpo_loss(hidden, model.head_weight, batch.targets, tokens, settings)
            with phase("backward"):
                torch.autograd.backward(outcome.total)
            with phase("clipping and AdamW"):
                clip_grad_norm_(model.parameters(), SPEC.trainer.max_grad_norm)
                optimizer.step(SPEC.trainer.learning_rate)
                model.zero_grad()
    return phase.medians()


def main() -> None:
    """Prints a row for each case."""
    parser = argparse.ArgumentParser(description="Measures one optimiser step of the plain torch learner.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.only] if options.only else CASES:
        found = measure(CASES[name], options.steps if name == "demo" else max(5, options.steps // 10))
        print(f"{name}: " + ", ".join(f"{phase} {milliseconds:.2f} ms" for phase, milliseconds in found.items()), flush=True)


if __name__ == "__main__":
    main()
