"""The cost of `numerics = "batch_invariant"`: the embedded engine's generation and the trainer's step, against `fast`.

"naive" is `numerics = "fast"`. The first model has a key head for every query head, as the demo's; the second shares each among four.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from operators.rows import Comparison, Row, Work, compare
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gradbus.spec import RunSpec
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch, TrainSample

MODELS = {
    "own": {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2},
    "shared": {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 4},
}
VOCABULARY = 64
NUMERICS = {"naive": "fast", "batch_invariant": "batch_invariant"}
GROUP = 8


def measure(device: str, quick: bool) -> list[Row]:
    """On a CPU; elsewhere the mode is refused."""
    if device != "cpu":
        return []
    cases = [(model, prompt, new, groups) for model in MODELS for prompt, new, groups in ((7, 5, 32), (60, 48, 16))]
    found = []
    for model, prompt, new, groups in cases[:1] if quick else cases:
        for part in ("generation", "step"):
            shape = f"{part}, key heads {model}, G={GROUP} P={prompt} R={new}, {groups} groups"
            case = {"part": part, "model": model, "prompt": prompt, "new": new, "groups": groups}
            rounds, repeats = (1, 2) if quick else (1, 9)
            found += compare(Comparison("deterministic", "numerics", shape, "float32", case, list(NUMERICS), rounds, repeats), device)
    return found


def prepare(device: str, dtype: str, implementation: str, **case: Any) -> Work:  # noqa: ARG001 - float32 on a CPU
    """The work of one row of the table."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, max_position_embeddings=512, **MODELS[case["model"]])).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0"))).save_pretrained(folder)
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, VOCABULARY, case["prompt"] + number % 4) for number in range(case["groups"])]
    make = _generation if case["part"] == "generation" else _step
    return make(folder, prompts, case["new"], NUMERICS[implementation])


def _generation(folder: Path, prompts: list[np.ndarray], new: int, numerics: Any) -> Work:
    engine = TorchEngine.from_folder(folder, TorchEngineConfig(slots=128, max_new_tokens=new, numerics=numerics))
    groups = [PromptGroup(str(n), tuple(ids.tolist()), tuple(range(n * GROUP, (n + 1) * GROUP))) for n, ids in enumerate(prompts)]

    def work() -> Iterable[torch.Tensor]:
        if engine.version is None:
            asyncio.run(engine.load([folder / "model.safetensors"], 0))
        asyncio.run(engine.generate(groups))
        return []

    return work


def _step(folder: Path, prompts: list[np.ndarray], new: int, numerics: str) -> Work:
    body = {"name": "price", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    learner = TorchLearner(folder, RunSpec.model_validate(body | {"schedule": {"steps": 1000}, "numerics": numerics}))
    draw, ones = np.random.default_rng(1), np.ones(new, np.float32)
    samples = [
        TrainSample(
            ids.astype(np.int32),
            draw.integers(0, VOCABULARY, new).astype(np.int32),
            -3.0 * ones,
            ones > 0,
            np.full_like(ones, draw.normal()),
        )
        for ids in prompts
        for _ in range(GROUP)
    ]
    steps = iter(range(1000))

    def work() -> Iterable[torch.Tensor]:
        learner.train(Batch(next(steps), samples))
        return []

    return work
