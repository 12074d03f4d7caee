"""Runs the same tests on every implementation of an operator; Triton's kernels run in its interpreter, or on a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradbus_kernels.operators import using
from gradbus_kernels.operators.base.block_sizes import HeadChunks
from gradbus_kernels.operators.linear_logprob import cpu as linear_logprob_cpu


@pytest.fixture(scope="session", autouse=True)
def _patched_once() -> Iterator[None]:
    """Triton's interpreter wraps the language anew at each call inside a kernel, ever deeper and slower: once is enough."""
    if find_spec("triton") is None:
        yield
        return
    interpreter = import_module("triton.runtime.interpreter")
    patched: set[str] = set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        module = function.fn.__module__
        if module.startswith("triton.") and module not in patched:
            patched.add(module)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_in_order(interpreter.TensorHandle))
        yield


def dot_in_order(handle: Any) -> Any:
    """`tl.dot` with one order of sums for all rows, as on a GPU. The interpreter uses numpy, whose BLAS may sum by a row's index."""

    def create_dot(_builder: Any, a: Any, b: Any, d: Any, *_precision: Any) -> Any:
        left, right = (factor.data.astype(d.data.dtype, copy=False) for factor in (a, b))
        product = np.zeros_like(d.data)
        for inner in range(left.shape[-1]):
            product += left[..., :, inner, None] * right[..., inner, None, :]
        return handle(product + d.data, d.dtype.scalar)

    return create_dot


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
