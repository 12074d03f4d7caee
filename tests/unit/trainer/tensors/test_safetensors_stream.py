"""The streamed file equals the library's, to the byte, and is written one tensor at a time."""

import gc
import io
import weakref

import pytest
import safetensors.torch
import torch

from gradbus_kernels.weights.digest import WeightsDigest, weights_digest
from gradbus_trainer.tensors import safetensors_stream
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.safetensors_stream import write_safetensors

TENSORS = {
    "model.layers.10.w": torch.randn(3, 5),
    "model.layers.2.w": torch.randn(7),
    "model.layers.2.w.step": torch.tensor(4.0),
    "empty": torch.zeros(0, 3),
    'a "quoted"\n\\ name\x7f\x01 of Ω': torch.randn(2, 1, 2),
    "turned": torch.randn(4, 6).T,
}


def written(tensors, dtype=torch.float32, metadata=None, digest=None):
    file = io.BytesIO()
    write_safetensors(file, tensors, dtype, metadata, digest)
    return file.getvalue()


@pytest.mark.parametrize("bucket", [1, 4, 1 << 24])
@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_file_is_to_the_byte_what_the_library_writes(dtype, metadata, bucket, monkeypatch):
    monkeypatch.setattr(safetensors_stream, "BUCKET_ELEMENTS", bucket)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in TENSORS.items()}
    digest = WeightsDigest()
    assert written(LazyTensors.of(TENSORS), dtype, metadata, digest) == safetensors.torch.save(tensors, metadata)
    assert digest.text == weights_digest(tensors)


@pytest.mark.parametrize("length", range(8))
def test_elements_begin_at_multiples_of_eight(length):
    tensors = {"n" * (length + 1): torch.ones(1)}
    assert written(LazyTensors.of(tensors)) == safetensors.torch.save(tensors)


def test_a_tensor_is_let_go_before_the_next_is_asked_for():
    alive = weakref.WeakSet()

    def make(name):
        gc.collect()
        assert not alive
        tensor = torch.full((5,), float(name))
        alive.add(tensor)
        return tensor

    shapes = {str(number): torch.Size([5]) for number in range(4)}
    found = safetensors.torch.load(written(LazyTensors(shapes, make)))
    assert {name: float(tensor[0]) for name, tensor in found.items()} == {"0": 0.0, "1": 1.0, "2": 2.0, "3": 3.0}


def test_a_large_tensor_is_cast_bucket_by_bucket(monkeypatch):
    monkeypatch.setattr(safetensors_stream, "BUCKET_ELEMENTS", 10)
    sizes = []

    class Noting(WeightsDigest):
        def add(self, elements):
            sizes.append((elements.numel(), elements.dtype))
            super().add(elements)

    written(LazyTensors.of({"w": torch.zeros(5, 5)}), torch.bfloat16, digest=Noting())
    assert sizes == [(10, torch.bfloat16), (10, torch.bfloat16), (5, torch.bfloat16)]
