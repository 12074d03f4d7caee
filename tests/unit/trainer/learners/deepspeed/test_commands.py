"""Commands of rank 0 arrive at the other ranks unchanged."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from gradbus.algorithms import SampleMarks
from gradbus_trainer.learners.deepspeed.commands import Command, batch_of, batch_tensors
from gradbus_trainer.step.batch import Batch, TrainSample


def test_a_command_survives_the_wire():
    command = Command("train", {"step": 3, "rate": 1e-3}, {"a": torch.tensor([1.5, -2.0]), "b": torch.tensor([True, False])})
    again = Command.from_bytes(command.to_bytes())
    assert (again.name, again.arguments) == (command.name, command.arguments)
    assert again.tensors.keys() == command.tensors.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in command.tensors.items())


def test_a_command_without_arguments_and_tensors_does_too():
    assert Command.from_bytes(Command("rest").to_bytes()) == Command("rest")


def with_others(sample):
    """With a teacher's rows, the sampler's, and the experts of its tokens."""
    rng, tokens = np.random.default_rng(len(sample.token_ids)), len(sample.token_ids)
    rows = [(rng.integers(0, 9, (tokens, k)).astype(np.int32), rng.normal(size=(tokens, k + 1)).astype(np.float32)) for k in (2, 3)]
    routes = rng.integers(0, 4, (len(sample.prompt_ids) + tokens, 2, 1)).astype(np.int16)
    return replace(sample, teacher_rows=rows[0], behaviour_rows=rows[1], routes=routes)


@pytest.mark.parametrize("with_references", [True, False])
@pytest.mark.parametrize("with_forks", [True, False])
@pytest.mark.parametrize("with_rows", [True, False])
def test_a_batch_comes_back_bit_for_bit(make_batch, split, with_references, with_forks, with_rows):
    marks = (SampleMarks(cut_off=with_forks), SampleMarks(best=with_forks), SampleMarks())
    cut = [replace(sample, marks=mark) for sample, mark in zip(make_batch(seed=2).samples, marks, strict=False)]
    samples = [*make_batch().samples, *cut, *(split(make_batch(seed=1).samples) if with_forks else [])]
    samples = [with_others(sample) for sample in samples] if with_rows else samples
    batch = Batch(7, samples if with_references else [replace(sample, reference_logprobs=None) for sample in samples])
    again = batch_of(7, Command.from_bytes(Command("train", {}, batch_tensors(batch)).to_bytes()).tensors)
    assert (again.step, len(again.samples)) == (7, len(batch.samples))
    for one, two in zip(batch.samples, again.samples, strict=True):
        for name in (field.name for field in fields(TrainSample)):
            here, there = getattr(one, name), getattr(two, name)
            parts = [(here, there)] if not isinstance(here, tuple) or name in {"marks", "origin"} else list(zip(here, there, strict=True))
            for part, other in parts:
                assert np.array_equal(part, other) if isinstance(part, np.ndarray) else part == other, name
                assert not isinstance(part, np.ndarray) or part.dtype == other.dtype, name
