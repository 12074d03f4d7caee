"""Tensors that are made when they are asked for."""

import pytest
import torch

from gradbus_trainer.tensors.lazy_tensors import LazyTensors


def test_nothing_is_made_before_it_is_asked_for_and_all_of_it_again_then():
    made = []

    def make(name):
        made.append(name)
        return torch.zeros(2)

    tensors = LazyTensors({"a": torch.Size([2]), "b": torch.Size([2])}, make)
    assert (len(tensors), list(tensors), "a" in tensors, "c" in tensors, made) == (2, ["a", "b"], True, False, [])
    for _ in range(2):
        assert tensors["b"].shape == (2,)
    assert made == ["b", "b"]
    with pytest.raises(KeyError):
        tensors["c"]


def test_those_of_two_are_read_where_they_are():
    one, other = {"a": torch.zeros(1)}, {"b": torch.ones(1, requires_grad=True)}
    both = LazyTensors.of(one) | LazyTensors.of(other)
    one["a"] += 5.0
    assert {name: float(tensor) for name, tensor in both.items()} == {"a": 5.0, "b": 1.0}
    assert both.shapes == {"a": (1,), "b": (1,)}
    assert not both["b"].requires_grad
    assert LazyTensors.of({}) == {}
