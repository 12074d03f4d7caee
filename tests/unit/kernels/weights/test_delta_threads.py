"""Threads code tensors side by side: by the same bytes, and with the first error in order of name."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from xxhash import xxh3_128_digest

from gradbus_kernels.weights import threads
from gradbus_kernels.weights.delta import format as delta_format
from gradbus_kernels.weights.delta.api import apply_delta, encode_delta
from gradbus_kernels.weights.delta.bytes import DamagedDeltaError
from gradbus_kernels.weights.delta.format import WrongBaseError

SIZES = {"a": 70_000, "b": 3, "c": 200_000, "d": 0, "e": 90_001}


@pytest.fixture(params=[1, 2, 5])
def pool(request, monkeypatch):
    with ThreadPoolExecutor(request.param) as pool:
        monkeypatch.setattr(threads, "weight_threads", lambda: pool)
        yield pool


def versions():
    draw = torch.Generator().manual_seed(0)
    old = {name: (torch.randn(size, generator=draw) * 0.02).bfloat16() for name, size in SIZES.items()}
    return old, {name: (tensor + 3e-5 * torch.randn(tensor.shape, generator=draw)).bfloat16() for name, tensor in old.items()}


def test_any_number_of_threads_gives_the_same_bytes(pool, monkeypatch):
    old, new = versions()
    delta = encode_delta(old, new)
    assert all(torch.equal(tensor, new[name]) for name, tensor in apply_delta(delta, old).items())
    monkeypatch.setattr(threads, "SMALL_BYTES", 1 << 40)
    assert encode_delta(old, new) == delta  # all of it in this thread


@pytest.mark.parametrize("wrong", ["ace", "ce", "e"])
def test_the_first_tensor_with_another_base_is_named(pool, wrong):
    old, new = versions()
    delta = encode_delta(old, new)
    with pytest.raises(WrongBaseError, match=f"tensor {wrong[0]} has other elements"):
        apply_delta(delta, old | {name: old[name] + 1 for name in wrong})


def test_a_delta_that_ends_too_early_is_damaged_if_its_base_is_right(pool):
    old, new = versions()
    delta = encode_delta(old, new)
    body = delta[21:-5]
    cut = delta[:5] + xxh3_128_digest(body) + body
    with pytest.raises(DamagedDeltaError, match="announced"):
        apply_delta(cut, old)
    with pytest.raises(WrongBaseError, match="tensor a has other elements"):
        apply_delta(cut, old | {"a": old["a"] + 1})
    with pytest.raises(WrongBaseError, match="tensor e has other elements"):
        apply_delta(cut, old | {"e": old["e"] + 1})


def test_after_an_error_no_thread_writes_any_more(pool, monkeypatch):
    old, new = versions()
    delta, into = encode_delta(old, new), {name: torch.zeros_like(tensor) for name, tensor in old.items()}
    held, running, plain = threading.Event(), set(), delta_format.apply_chunk

    def slow(content, before, *rest):
        running.add(len(before))
        assert len(before) != SIZES["e"] or held.wait(20)
        plain(content, before, *rest)
        running.remove(len(before))

    monkeypatch.setattr(delta_format, "apply_chunk", slow)
    threading.Timer(0.2, held.set).start()
    with pytest.raises(WrongBaseError):
        apply_delta(delta, old | {"a": old["a"] + 1}, into)
    assert not running
