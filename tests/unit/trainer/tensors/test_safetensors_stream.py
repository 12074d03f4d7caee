"""The streamed file equals the library's, to the byte, and is written one tensor at a time."""

import errno
import gc
import os
import weakref

import pytest
import safetensors.torch
import torch

from gradbus_kernels.weights import host_buffers, threads
from gradbus_kernels.weights.digest import weights_digest
from gradbus_kernels.weights.digest_tree import WeightsDigest
from gradbus_kernels.weights.piece_reader import PieceReader
from gradbus_trainer.tensors import output
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.safetensors_stream import TensorLayout, write_safetensors

TENSORS = {
    "model.layers.10.w": torch.randn(3, 5),
    "model.layers.2.w": torch.randn(7),
    "model.layers.2.w.step": torch.tensor(4.0),
    "empty": torch.zeros(0, 3),
    'a "quoted"\n\\ name\x7f\x01 of Ω': torch.randn(2, 1, 2),
    "turned": torch.randn(4, 6).T,
}


@pytest.fixture(params=[1, 4], ids=["written", "mapped"], autouse=True)
def by_threads(request, monkeypatch):
    """So many threads that the file is written, or mapped."""
    monkeypatch.setattr(output, "thread_count", lambda: request.param)


def written(path, tensors, layout, digest=None):
    with path.open("w+b") as file:
        write_safetensors(file, tensors, layout, PieceReader(), digest)
    return path.read_bytes()


@pytest.mark.parametrize("piece", [8, 32, 1 << 23])
@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_file_is_to_the_byte_what_the_library_writes(tmp_path, dtype, metadata, piece, monkeypatch):
    monkeypatch.setattr(threads, "SMALL_BYTES", 4)
    monkeypatch.setattr(host_buffers, "PIECE_BYTES", piece)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in TENSORS.items()}
    digest, layout = WeightsDigest(), TensorLayout(dtype, metadata)
    assert written(tmp_path / "w", LazyTensors.of(TENSORS), layout, digest) == safetensors.torch.save(tensors, metadata)
    assert digest.text() == weights_digest(tensors)


@pytest.mark.parametrize("length", range(8))
def test_elements_begin_at_multiples_of_eight(tmp_path, length):
    tensors = {"n" * (length + 1): torch.ones(1)}
    assert written(tmp_path / "w", LazyTensors.of(tensors), TensorLayout(torch.float32)) == safetensors.torch.save(tensors)


def test_a_tensor_is_let_go_before_the_next_is_asked_for(tmp_path):
    alive = weakref.WeakSet()

    def make(name):
        gc.collect()
        assert not alive
        tensor = torch.full((5,), float(name))
        alive.add(tensor)
        return tensor

    shapes = {str(number): torch.Size([5]) for number in range(4)}
    found = safetensors.torch.load(written(tmp_path / "w", LazyTensors(shapes, make), TensorLayout(torch.float32)))
    assert {name: float(tensor[0]) for name, tensor in found.items()} == {"0": 0.0, "1": 1.0, "2": 2.0, "3": 3.0}


def test_a_full_disk_ends_it_before_all_tensors_are_made(tmp_path, no_file_over):
    made = []

    def make(name):
        made.append(name)
        return torch.ones(1000)

    tensors = LazyTensors({f"{number:03}": torch.Size([1000]) for number in range(200)}, make)
    with no_file_over(50_000), pytest.raises(OSError):
        written(tmp_path / "w", tensors, TensorLayout(torch.float32), WeightsDigest())
    assert len(made) < 50


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_reserves_nothing_is_written_to(tmp_path, monkeypatch, refusal):
    def refuse(*_):
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    tensors = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    assert written(tmp_path / "w", LazyTensors.of(TENSORS), TensorLayout(torch.float32)) == safetensors.torch.save(tensors)


def test_a_disk_without_room_for_the_first_byte_is_full(tmp_path, monkeypatch, by_threads):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "thread_count", lambda: 8)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path / "w", LazyTensors.of(TENSORS), TensorLayout(torch.float32))
