"""Every implementation of an operator is held to the same tests; Triton's kernels run in its interpreter, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from gradbus_kernels.operators import using


@pytest.fixture(params=["reference", "cpu", "triton"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "triton" and find_spec("triton") is None:
        pytest.skip("triton is not installed; pip install triton")
    with using(request.param):
        yield request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
