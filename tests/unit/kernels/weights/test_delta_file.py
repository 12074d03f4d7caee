"""A delta recreates the published file byte for byte; another layout is refused."""

from itertools import pairwise

import pytest
import torch
from safetensors.torch import save

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, DeltaError
from gradbus_kernels.weights.delta.file import apply_file_delta, encode_file_delta
from gradbus_kernels.weights.delta.format import WrongBaseError


def file(seed, **more):
    random = torch.Generator().manual_seed(seed)
    tensors = {
        "matrix": torch.randn(30, 7, generator=random).bfloat16(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(float(seed)),
        "odd": torch.randn(5, generator=random).half(),
    }
    return save(tensors | more, metadata={"format": "pt"})


def encode(old, new):
    return encode_file_delta(memoryview(old), memoryview(new))


def applied(delta, old):
    new = bytearray(len(old))
    apply_file_delta(memoryview(delta), memoryview(old), memoryview(new))
    return bytes(new)


def test_the_new_file_comes_back_to_the_byte_and_deltas_follow_each_other():
    files = [file(seed) for seed in range(4)]
    deltas = [encode(old, new) for old, new in pairwise(files)]
    made = files[0]
    for delta, expected in zip(deltas, files[1:], strict=True):
        made = applied(delta, made)
        assert made == expected


def test_the_same_file_costs_next_to_nothing():
    assert len(encode(file(1), file(1))) < len(file(1)) / 2


@pytest.mark.parametrize(
    "other", [file(1, more=torch.zeros(3)), file(1, matrix=torch.zeros(7, 30).bfloat16()), file(1)[:-1], b"", b"no file"]
)
def test_a_file_of_another_layout_is_refused(other):
    for old, new in ((file(0), other), (other, file(0))):
        with pytest.raises(DeltaError, match=r"publish|fetch"):
            encode(old, new)


@pytest.mark.parametrize("spoilt", [save({"n": torch.arange(3)}), b"\x04" + bytes(7) + b"[12]", b"\x02" + bytes(7) + b"{}more"])
def test_a_file_whose_tensors_cannot_be_coded_is_refused(spoilt):
    with pytest.raises(DeltaError, match="whole version"):
        encode(spoilt, spoilt)


def test_another_base_and_a_damaged_delta_are_different_errors():
    delta = encode(file(0), file(1))
    with pytest.raises(WrongBaseError):
        applied(delta, file(2))
    with pytest.raises(DamagedDeltaError):
        applied(delta[:-1] + bytes([delta[-1] ^ 1]), file(0))
    with pytest.raises(DeltaError):
        applied(delta, b"no file")
