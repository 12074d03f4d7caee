"""Runs the same tests on every implementation of an operator; Triton's kernels run in its interpreter, or on a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from triton_lab import _patched_once  # noqa: F401 - a fixture for all of these tests

from gradbus_kernels.operators import using
from gradbus_kernels.operators.base.block_sizes import HeadChunks
from gradbus_kernels.operators.linear_logprob import cpu as linear_logprob_cpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Triton's interpreter takes seconds a case, and the kernels treat fp16 as they treat bf16."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and {"triton", "fp16"} <= set(re.split(r"[-\[\]]", item.name)):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["reference", "cpu", "triton"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "triton" and find_spec("triton") is None:
        pytest.skip("triton is not installed; pip install triton")
    with using(request.param):
        yield request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def small_head_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators on an LM head take 5 tokens and 7 ids at a time."""
    for name, size in {"TOKENS": 5, "COLUMNS": 7, "PRODUCT_TOKENS": 5, "PRODUCT_COLUMNS": 7, "PIECE": 14}.items():
        monkeypatch.setattr(linear_logprob_cpu, name, size)
    if find_spec("triton") is not None:
        from gradbus_kernels.operators.linear_logprob import triton as on_gpu

        monkeypatch.setattr(on_gpu, "LAUNCH", HeadChunks(workspace=41 * 4 * 5, tile=4))
