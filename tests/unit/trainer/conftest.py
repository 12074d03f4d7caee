"""A tiny model, specs over it, and batches a rollout could have written."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from gradbus.spec import RunSpec
from gradbus_trainer.step.batch import Batch, Origin, TrainSample

VOCABULARY = 23


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def make_spec():
    """A spec with no gradient clipping; each keyword is a section's fields."""

    def make(**sections):
        sections["trainer"] = {"learning_rate": 1e-3, "max_grad_norm": 1e9} | sections.get("trainer", {})
        body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
        return RunSpec.model_validate(body | {"schedule": {"steps": 10}} | sections)

    return make


@pytest.fixture
def make_batch():
    """Three groups of four: mixed lengths, some tokens not trainable, reference log-probs near the behaviour's."""

    def make(step=0, seed=0, all_trainable=False):
        rng = np.random.default_rng(seed)
        samples = []
        for _ in range(3):
            prompt = rng.integers(2, VOCABULARY, rng.integers(2, 8)).astype(np.int32)
            for _ in range(4):
                length = int(rng.integers(1, 7))
                tokens = rng.integers(1, VOCABULARY, length).astype(np.int32)
                behaviour = rng.normal(-3.0, 0.6, length).astype(np.float32)
                trainable = (rng.random(length) < 0.8) | all_trainable
                reference = (behaviour + rng.normal(0.0, 0.2, length)).astype(np.float32)
                samples.append(TrainSample(prompt, tokens, behaviour, trainable, np.full(length, rng.normal(), np.float32), reference))
        return Batch(step, samples)

    return make


@pytest.fixture(scope="session")
def split():
    """Divides samples into 1, 2, ... `most`, 1, 2, ... sequences that mean the same: each goes on from what was before it, as a fork does.

    Groups are of four samples; a sample has at most as many sequences as tokens.
    """

    def make(samples, most=3):
        return [row for at, sample in enumerate(samples) for row in _sequences(sample, 1 + at % most, Origin(at // 4, at % 4))]

    return make


def _sequences(sample, count, origin):
    length = len(sample.token_ids)
    for start, end in pairwise(np.linspace(0, length, min(count, length) + 1).astype(int)):
        names = ("token_ids", "behaviour_logprobs", "trainable", "advantages", "reference_logprobs")
        by_token = {name: None if (values := getattr(sample, name)) is None else values[start:end] for name in names}
        if (rows := sample.behaviour_rows) is not None:
            by_token["behaviour_rows"] = tuple(part[start:end] for part in rows)
        marks = sample.marks if end == length else sample.marks._replace(cut_off=False)
        prompt = np.concatenate([sample.prompt_ids, sample.token_ids[:start]])
        yield replace(sample, prompt_ids=prompt, origin=origin, marks=marks, **by_token)
