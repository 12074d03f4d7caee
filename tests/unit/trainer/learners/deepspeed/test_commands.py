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


@pytest.mark.parametrize("with_references", [True, False])
@pytest.mark.parametrize("with_forks", [True, False])
def test_a_batch_comes_back_bit_for_bit(make_batch, split, with_references, with_forks):
    cut = [replace(sample, marks=SampleMarks(cut_off=with_forks)) for sample in make_batch(seed=2).samples[:3]]
    samples = [*make_batch().samples, *cut, *(split(make_batch(seed=1).samples) if with_forks else [])]
    batch = Batch(7, samples if with_references else [replace(sample, reference_logprobs=None) for sample in samples])
    again = batch_of(7, Command.from_bytes(Command("train", {}, batch_tensors(batch)).to_bytes()).tensors)
    assert (again.step, len(again.samples)) == (7, len(batch.samples))
    for one, two in zip(batch.samples, again.samples, strict=True):
        for name in (field.name for field in fields(TrainSample)):
            here, there = getattr(one, name), getattr(two, name)
            assert np.array_equal(here, there) if isinstance(here, np.ndarray) else here == there, name
            assert not isinstance(here, np.ndarray) or here.dtype == there.dtype, name
