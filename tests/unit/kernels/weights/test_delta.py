"""A delta gives the new weights bit for bit, or an error; it is small, and nothing in it is trusted."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from gradbus_kernels.weights.delta import format as weights_delta_format
from gradbus_kernels.weights.delta.api import apply_delta, encode_delta, tensor_digest
from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, DeltaError
from gradbus_kernels.weights.delta.format import WrongBaseError

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FRAME = 21  # magic, version, checksum
patient = settings(deadline=None)


def bits(tensor):
    word = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    return tensor.contiguous().view(-1).view(word).tolist()


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and one[name].dtype == other[name].dtype and bits(one[name]) == bits(other[name])
        for name in one
    )


def flat(model):
    return weights_delta_format.FlatTensor(
        weights_delta_format.FORMATS["BF16"], tuple(model["w"].shape), np.array(bits(model["w"]), np.int16).view(np.uint16)
    )


def from_bits(values, dtype, shape=-1):
    width = torch.finfo(dtype).bits // 8
    return torch.from_numpy(np.array(values).astype(f"u{width}").view(f"i{width}")).view(dtype).view(shape)


def stepped(size, share, dtype=torch.bfloat16):
    """Weights before and after a step that changes about `share` of them in bfloat16, as one-tensor models."""
    draw = torch.Generator().manual_seed(size)
    master = torch.randn(size, generator=draw) * 0.02
    step = torch.randn(size, generator=draw) * share * 2.4e-5
    return {"w": master.to(dtype)}, {"w": (master + step).to(dtype)}


def sealed(delta, body):
    """The delta with another body, and a checksum that matches it."""
    return delta[:5] + xxh3_128_digest(bytes(body)) + bytes(body)


@st.composite
def versions(draw):
    """A tensor before and after: any bits or weights; none, few, most or all changed, by little or by anything."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 9), max_size=3) | st.lists(st.integers(0, 3000), min_size=1, max_size=1))
    width, size = torch.finfo(dtype).bits, int(np.prod(shape))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = random.integers(0, 1 << width, size)
    if draw(st.booleans()):
        old = np.array(bits(torch.from_numpy(random.normal(0, 0.02, size)).to(dtype)), np.int64)
    chosen = random.random(size) < draw(st.sampled_from([0, 0.001, 0.01, 0.1, 0.4, 0.6, 0.99, 1]))
    steps = random.integers(1, draw(st.sampled_from([2, 3, 100, 1 << width])), size) * random.choice([-1, 1], size)
    return from_bits(old, dtype, shape), from_bits(old + chosen * steps, dtype, shape)


@pytest.fixture
def forced(monkeypatch):
    """Makes one implementation code all weights, whatever their size."""
    return lambda loops: monkeypatch.setattr(weights_delta_format, "loops_for", lambda size: loops)


@patient
@given(versions())
def test_a_delta_gives_the_new_weights_bit_for_bit_by_the_same_bytes(both_loops, pair):
    old, new = ({"w": tensor} for tensor in pair)
    before = bits(old["w"])
    deltas = []
    for loops in both_loops.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weights_delta_format, "loops_for", lambda size, loops=loops: loops)
            deltas.append(encode_delta(old, new))
            assert same(apply_delta(deltas[0], old), new)
    assert deltas[0] == deltas[1]
    assert bits(old["w"]) == before


@patient
@given(versions())
def test_a_delta_is_never_much_larger_than_the_weights(pair):
    old, new = ({"w": tensor} for tensor in pair)
    assert len(encode_delta(old, new)) <= new["w"].nbytes + FRAME + 64


SPECIAL = {
    torch.bfloat16: [0, 0x8000, 1, 0x8001, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0x7FFF, 0xFFFF, 0x3F80, 0xBF80],
    torch.float16: [0, 0x8000, 1, 0x8001, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0x7FFF, 0xFFFF, 0x3C00, 0xBC00],
    torch.float32: [0, 1 << 31, 1, (1 << 31) + 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x3F800000],
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_special_value_can_become_every_other(dtype, loops, forced):
    forced(loops)
    values = np.array(SPECIAL[dtype])
    calm = np.full(2000, values[-1])  # so many unchanged that the tensor does not go whole
    sides = np.meshgrid(values, values, indexing="ij")
    old, new = ({"w": from_bits(np.concatenate([calm, side.ravel()]), dtype)} for side in sides)
    delta = encode_delta(old, new)
    assert len(delta) < 1000
    assert same(apply_delta(delta, old), new)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 5000, 131_073, 300_000])
def test_no_size_is_special(size, loops, forced):
    forced(loops)
    old, new = stepped(size, 0.02)
    assert same(apply_delta(encode_delta(old, new), old), new)


def test_a_scalar_and_a_tensor_without_elements_are_tensors_too():
    old = {"scalar": torch.tensor(1.0), "empty": torch.zeros(3, 0)}
    new = {"scalar": torch.tensor(2.0), "empty": torch.zeros(3, 0)}
    assert same(apply_delta(encode_delta(old, new), old), new)


def test_a_tensor_may_be_larger_than_a_chunk(monkeypatch):
    monkeypatch.setattr(weights_delta_format, "CHUNK", 1000)
    old, new = stepped(30_003, 0.02)
    delta = encode_delta(old, new)
    assert same(apply_delta(delta, old), new)
    assert len(delta) < old["w"].nbytes / 10


def test_a_tensor_need_not_be_contiguous():
    old, new = ({"w": model["w"].view(100, 70).t()} for model in stepped(7000, 0.02))
    assert same(apply_delta(encode_delta(old, new), old), new)


def test_equal_weights_need_no_more_than_a_name_and_digests():
    old, _ = stepped(100_000, 0.02)
    delta = encode_delta(old, {"w": old["w"].clone()})
    assert len(delta) < FRAME + 48
    assert same(apply_delta(delta, old), old)


def floor_bytes(old, new):
    """Entropy of the change of rank of every element, given the exponent of the old one."""
    ranks = [model["w"].view(torch.int16).numpy().astype(np.int32) for model in (old, new)]
    steps = np.subtract(*[np.where(rank < 0, -32768 - rank, rank) for rank in ranks])
    total = 0.0
    for exponent in np.unique(ranks[0] >> 7 & 255):
        counts = np.unique(steps[(ranks[0] >> 7 & 255) == exponent], return_counts=True)[1]
        total -= (counts * np.log2(counts / counts.sum())).sum()
    return total / 8


@pytest.mark.parametrize("share", [0.001, 0.01, 0.03, 0.1])
def test_large_weights_have_the_same_delta_by_either_loops(both_loops, share):
    old, new = ({"w": flat(model)} for model in stepped((1 << 22) + 1_000_003, share))
    into = {"w": old["w"]._replace(bits=np.zeros_like(old["w"].bits))}
    deltas = [weights_delta_format.encode_tensors(old, new, loops) for loops in both_loops.values()]
    assert deltas[0] == deltas[1]
    for loops in both_loops.values():
        into["w"].bits[:] = 0
        weights_delta_format.apply_tensors(deltas[0], old, into, loops)
        assert np.array_equal(into["w"].bits, new["w"].bits)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.03, 0.1])
def test_a_delta_is_near_the_entropy_of_the_change(share):
    old, new = stepped(1 << 20, share)
    assert len(encode_delta(old, new)) < 1.35 * floor_bytes(old, new)


def test_memory_can_be_given():
    old, new = stepped(5000, 0.02)
    into = {"w": torch.zeros_like(old["w"])}
    assert apply_delta(encode_delta(old, new), old, into)["w"] is into["w"]
    assert same(into, new)


@pytest.mark.parametrize(
    "unfit",
    [
        lambda _: {},
        lambda old: {"w": torch.zeros(99, dtype=old.dtype)},
        lambda old: {"w": torch.zeros(100)},
        lambda old: {"w": torch.zeros(200, dtype=old.dtype)[::2]},
        lambda old: {"w": old},
    ],
)
def test_memory_that_does_not_fit_is_refused(unfit):
    old, new = stepped(100, 0.02)
    with pytest.raises(DeltaError, match="into"):
        apply_delta(encode_delta(old, new), old, unfit(old["w"]))


def test_weights_that_are_no_versions_of_one_model_are_refused():
    weights = torch.zeros(4)
    for other in ({"x": weights}, {}, {"w": weights.view(2, 2)}, {"w": weights.half()}):
        with pytest.raises(DeltaError, match="publish the whole version"):
            encode_delta({"w": weights}, other)
    with pytest.raises(DeltaError, match=r"torch\.float64"):
        encode_delta({"w": weights.double()}, {"w": weights.double()})


def test_another_base_is_refused():
    old, new = stepped(5000, 0.02)
    delta = encode_delta(old, new)
    flipped = old["w"].clone()
    flipped[4321] *= 2
    others = {"w": flipped}, {"v": old["w"]}, {"w": old["w"].view(50, 100)}, {"w": old["w"].half()}, {**old, "x": flipped}, new, {}
    for other in (*others, {"a name longer than the delta" * 100: old["w"]}):
        with pytest.raises(WrongBaseError, match="another version"):
            apply_delta(delta, other)


def test_damage_anywhere_is_refused():
    old, new = stepped(2000, 0.05)
    delta = encode_delta(old, new)
    for index in range(len(delta)):
        damaged = bytearray(delta)
        damaged[index] ^= 1 << index % 8
        with pytest.raises(DeltaError, match=r"damaged|format"):
            apply_delta(bytes(damaged), old)


@pytest.mark.parametrize("length", [0, 3, 5, 20, 21, 30, 60, -1])
def test_a_delta_cut_short_is_refused(length):
    old, new = stepped(2000, 0.05)
    delta = encode_delta(old, new)
    with pytest.raises(DamagedDeltaError):
        apply_delta(delta[:length], old)
    with pytest.raises(DeltaError):
        apply_delta(sealed(delta, delta[FRAME:length]), old)


def test_bytes_after_the_end_are_refused():
    old, new = stepped(2000, 0.05)
    delta = encode_delta(old, new)
    with pytest.raises(DamagedDeltaError, match="left over"):
        apply_delta(sealed(delta, delta[FRAME:] + b"\0"), old)


def test_another_format_version_is_named():
    old, new = stepped(10, 0.05)
    delta = bytearray(encode_delta(old, new))
    delta[4] = 1
    with pytest.raises(DeltaError, match="format 1, this build reads 2"):
        apply_delta(bytes(delta), old)


@patient
@given(data=st.data())
def test_a_changed_delta_with_a_right_checksum_never_gives_other_weights(loops, data):
    old, new = stepped(3000, data.draw(st.sampled_from([0.01, 0.1])))
    delta = encode_delta(old, new)
    body = bytearray(delta[FRAME:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    result = flat(old)._replace(bits=np.zeros(3000, np.uint16))
    try:
        weights_delta_format.apply_tensors(sealed(delta, body), {"w": flat(old)}, {"w": result}, loops)
    except DeltaError:
        return
    assert np.array_equal(result.bits, flat(new).bits)  # the change changed nothing, or only padding


def test_a_small_delta_cannot_ask_for_much_memory():
    old, new = stepped(2000, 0.05)
    delta = encode_delta(old, new)
    digests = delta.index(tensor_digest("w", old["w"])) + 32 - FRAME
    huge = b"\xff" * 8 + b"\x7f"
    tracemalloc.start()
    for body in (huge, delta[FRAME : FRAME + digests] + huge, delta[FRAME : FRAME + digests] + b"\x0b\0" + huge + b"\0"):
        with pytest.raises(DeltaError):
            apply_delta(sealed(delta, body), old)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_digest_covers_name_dtype_shape_and_elements():
    zeros = torch.zeros(4)
    tensors = (zeros, zeros.half(), zeros.view(2, 2), torch.tensor([0, 0, 0, -0.0]), zeros[:3])
    digests = {tensor_digest("w", tensor) for tensor in tensors} | {tensor_digest("v", zeros)}
    assert len(digests) == len(tensors) + 1


def test_format_2_stays_readable():
    old = {"w": from_bits(np.arange(600) * 109 % 65536, torch.bfloat16)}
    new = {"w": from_bits(np.arange(600) * 109 % 65536 + (np.arange(600) % 7 == 0) * (np.arange(600) % 5), torch.bfloat16)}
    assert same(apply_delta(bytes.fromhex(FORMAT_2), old), new)


FORMAT_2 = """
4742574402a5131424a5e300edc07895c083b3e3aa010177044246313601d804a697c883f2f2948d1062cad32deab52189613ab65ef05943c5aa5d5d
14ba52285b1c3c18e0bdf7de7b83bdf7de7b0ffeffffbfffffff0fefeeeeaeeeeeee0e101111511111110142080aaa8a02af41000000c0ffffff0f2d
0faaaaaa2afe7f2449922449120f0e555555150100000000f0060106020c020105030000
"""
