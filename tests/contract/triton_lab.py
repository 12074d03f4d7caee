"""Triton's interpreter as the tests run its kernels: patched once, sums in one order, and types looked up once."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest


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
        # Each operation looks a type up, for which the interpreter makes the table of all types, and makes a tensor with its shape.
        patch.setattr(interpreter, "_get_np_dtype", found_once(interpreter._get_np_dtype))
        patch.setattr(interpreter.tl.core.tensor, "__init__", shape_made_once(interpreter.tl.core))
        yield


def found_once(lookup: Any) -> Any:
    """The same lookup, once for each name of a type; types of blocks have no hash."""
    known: dict[str, Any] = {}

    def find(kind: Any) -> Any:
        if kind.name not in known:
            known[kind.name] = lookup(kind)
        return known[kind.name]

    return find


def shape_made_once(core: Any) -> Any:
    """What `tl.tensor.__init__` does, with one object for each shape: to make one takes longer than most operations on small tiles."""

    @functools.cache
    def of(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))

    def initialize(tensor: Any, handle: Any, kind: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
        tensor.shape, tensor.numel = of(kind.shape if kind.is_block() else ())

    return initialize


def dot_in_order(handle: Any) -> Any:
    """`tl.dot` with one order of sums for all rows, as on a GPU. The interpreter uses numpy, whose BLAS may sum by a row's index."""

    def create_dot(_builder: Any, a: Any, b: Any, d: Any, *_precision: Any) -> Any:
        left, right = (factor.data.astype(d.data.dtype, copy=False) for factor in (a, b))
        product = np.zeros_like(d.data)
        for inner in range(left.shape[-1]):
            product += left[..., :, inner, None] * right[..., inner, None, :]
        return handle(product + d.data, d.dtype.scalar)

    return create_dot
