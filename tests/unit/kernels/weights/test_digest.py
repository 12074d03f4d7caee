"""The digest of weights is what its definition says, whoever computes it and in how many threads."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.weights import digest_tree, host_buffers, threads
from gradbus_kernels.weights.digest import SAFETENSORS_DTYPES, weights_digest
from gradbus_kernels.weights.digest_tree import WeightsDigest, piece_digest

PIECE = 48


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of a few elements, none so small that it is hashed in place."""
    for module in (digest_tree, host_buffers):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(threads, "SMALL_BYTES", 0)


def sha256(content):
    return hashlib.sha256(content).digest()


def defined(tensors, piece=PIECE):
    """The definition, written once more."""
    total = b""
    for name, tensor in sorted(tensors.items()):
        content = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
        texts = [name.encode(), SAFETENSORS_DTYPES[tensor.dtype].encode()]
        head = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
        head += b"".join(number.to_bytes(8, "little") for number in (tensor.dim(), *tensor.shape))
        total += sha256(head + b"".join(sha256(content[at : at + piece]) for at in range(0, len(content), piece)))
    return f"sha256:{hashlib.sha256(total).hexdigest()}"


TENSORS = {
    "b": torch.arange(60.0).reshape(5, 12),
    "a.weight": torch.tensor([float("nan"), -0.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "turned": torch.arange(50).half().reshape(5, 10).T,
    "Ω": torch.ones(24, dtype=torch.bfloat16),
}


def test_it_is_as_defined():
    assert weights_digest(TENSORS) == defined(TENSORS)


def test_pieces_have_eight_mebibytes(monkeypatch):
    monkeypatch.undo()
    size = digest_tree.PIECE_BYTES
    assert size == 8 << 20
    tensors = {"w": torch.arange(size // 4 + 1, dtype=torch.float32), "v": torch.zeros(3)}
    assert weights_digest(tensors) == defined(tensors, size)


def test_its_text_stays():
    """Versions that are stored have it in their manifests."""
    assert weights_digest({"w": torch.arange(4.0), "b": torch.ones(2, 1, dtype=torch.bfloat16)}) == (
        "sha256:7d00826b70f3433a2d11ab057fe7e3d53d5b4ff8045d78f04cb7534d38644802"
    )


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 200), max_size=5), st.sampled_from(list(SAFETENSORS_DTYPES)))
def test_odd_sizes_and_names(sizes, dtype):
    tensors = {name: torch.randn(size).to(dtype) for name, size in sizes.items()}
    assert weights_digest(tensors) == defined(tensors)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_any_number_of_threads_gives_the_same_text(monkeypatch, count):
    with ThreadPoolExecutor(count) as pool:
        monkeypatch.setattr(threads, "weight_threads", lambda: pool)
        assert weights_digest(TENSORS) == defined(TENSORS)


def test_a_flipped_bit_in_any_piece_changes_it():
    tensor = torch.randn(3 * PIECE // 4 + 5)
    before = weights_digest({"w": tensor})
    bits = tensor.view(torch.int32)
    for place in range(0, len(tensor), 4):
        bits[place] ^= 1 << place % 32
        assert weights_digest({"w": tensor}) != before
        bits[place] ^= 1 << place % 32
    assert weights_digest({"w": tensor}) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": torch.ones(2), "b": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.ones(2)}),
        ({"a": torch.ones(4)}, {"a": torch.ones(2, 2)}),
        ({"a": torch.ones(24)}, {"a": torch.ones(12), "b": torch.ones(12)}),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(4, dtype=torch.float16)}),
        ({"aF3": torch.zeros(0)}, {"a": torch.zeros(0)}),
    ],
)
def test_names_shapes_dtypes_and_places_count(one, other):
    assert weights_digest(one) != weights_digest(other)


def test_content_of_a_file_gives_the_same():
    digest = WeightsDigest()
    for name, tensor in sorted(TENSORS.items()):
        digest.begin(name, SAFETENSORS_DTYPES[tensor.dtype], tensor.shape)
        digest.add_content(memoryview(host_buffers.bytes_of(tensor.contiguous())))
    assert digest.text() == weights_digest(TENSORS)


def test_what_a_thread_raises_reaches_the_caller():
    def broken(_):
        raise MemoryError("no room")

    digest = WeightsDigest()
    digest.begin("w", "F32", (1,))
    digest.add(threads.submit(lambda: piece_digest(memoryview(b"ok")), 2))
    digest.add(threads.submit(lambda: broken(None), 1))
    with pytest.raises(MemoryError, match="no room"):
        digest.text()


def test_a_dtype_that_weights_never_have_is_refused():
    with pytest.raises(KeyError):
        weights_digest({"w": torch.ones(2, dtype=torch.int8)})
