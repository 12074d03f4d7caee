"""Torch's settings for equal bits on a GPU."""

import os
import warnings

import pytest
import torch

from gradbus_trainer.learners.determinism import fix_order_of_sums


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = filled


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_a_gpu_adds_in_a_fixed_order(device):
    fix_order_of_sums(device)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_an_operation_without_a_fixed_order_is_computed_all_the_same():
    fix_order_of_sums("cuda")
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_the_operators_own_workspace_is_kept(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    fix_order_of_sums("cuda")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_a_cpu_is_left_as_it_is():
    with warnings.catch_warnings(action="error"):
        fix_order_of_sums("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
