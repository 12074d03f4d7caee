"""The bytes of a delta never change: digests of deltas that the first encoder of format 2 wrote."""

import hashlib

import numpy as np
import pytest

from gradbus_kernels.weights.delta.format import CHUNK, FORMATS, FlatTensor, apply_tensors, encode_tensors


def mixed(size, salt):
    """Pseudo-random 64-bit integers, by arithmetic alone (splitmix64), so that no library's generator is frozen here."""
    word = (np.arange(size, dtype=np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def weights(name, size):
    """Bits of a bell of weights of about 0.02, and one special value in 1,000."""
    random = mixed(size, 1 << 40)
    values = sum((random >> np.uint64(16 * part) & np.uint64(0xFFFF)).astype(np.float64) - 32768 for part in range(4)) * 2.0**-20
    bits = values.astype(np.float16).view(np.uint16) if name == "F16" else values.astype(np.float32).view(np.uint32)
    bits = (bits >> 16).astype(np.uint16) if name == "BF16" else bits
    special = mixed(size, 2 << 40)
    return np.where(special % np.uint64(1000) == 0, special.astype(bits.dtype), bits)


def stepped(old, share):
    """A `share` of the elements changed, half of them by one, a quarter by two, and so on; either way."""
    random = mixed(len(old), 3 << 40)
    chosen = (random >> np.uint64(40)) < np.uint64(share * 2**24)
    low = random & np.uint64(0xFFFF) | np.uint64(0x1000)
    size = (np.log2((low & -low).astype(np.float64)) + 1).astype(old.dtype)
    return old + np.where(chosen, np.where(random >> np.uint64(20) & np.uint64(1), size, -size), 0).astype(old.dtype)


CASES = {
    ("BF16", 300_003, 0): "b83de597f93c8cdf1a887616825c0d75",
    ("BF16", 300_003, 0.0001): "fcd457577071fcabc999dd84ef697b4e",
    ("BF16", 300_003, 0.01): "8bb6211c7922675a4878616fdea99374",
    ("BF16", 300_003, 0.1): "6a3dc8845da1aeca355ed2ede8c3310f",
    ("BF16", 300_003, 0.6): "f44b83f3a55934dfb6d035d04022680a",
    ("BF16", 300_003, 1): "4e295890b49e891a807b83780f9b5080",
    ("F16", 300_003, 0): "653d0e24c3255e6a7318662c1bc49a61",
    ("F16", 300_003, 0.0001): "4acd9bebc1af59f510c04b4747bb1a54",
    ("F16", 300_003, 0.01): "b83930b08680b8f8c867bf7f16fdc18e",
    ("F16", 300_003, 0.1): "466e9acb1ae17d439aef3d3d5df6083c",
    ("F16", 300_003, 0.6): "03614df14f81ab50e0a5ba2c6c63c640",
    ("F16", 300_003, 1): "77b7edc72734be154643a21e6d216206",
    ("F32", 300_003, 0): "0b05e4db1c11437c96e040ee1a291653",
    ("F32", 300_003, 0.0001): "fca65d855b981f9819b98a4ef7e1fff4",
    ("F32", 300_003, 0.01): "7e3446a33a8266159e3617f0d58a46d6",
    ("F32", 300_003, 0.1): "049c4a6d26c54272e53ad0fa27de46db",
    ("F32", 300_003, 0.6): "06f559015cbaba3b3267a4b901a90260",
    ("F32", 300_003, 1): "6b73b2f5c0706440923114c953af40cb",
    ("BF16", CHUNK + 70_001, 0.01): "1e77cca34e70db02f3a0d6cc9a0e82c3",
    ("F32", CHUNK + 70_001, 0.0001): "5f40647685cfffd0019d2c8984aed2e4",
}


@pytest.mark.parametrize(("case", "digest"), CASES.items(), ids=[" ".join(map(str, case)) for case in CASES])
def test_a_delta_has_the_bytes_that_it_always_had(case, digest, loops):
    name, size, share = case
    old = weights(name, size)
    before, after, into = ({"w": FlatTensor(FORMATS[name], (size,), bits)} for bits in (old, stepped(old, share), np.zeros_like(old)))
    delta = encode_tensors(before, after, loops)
    assert hashlib.sha256(delta).hexdigest()[:32] == digest
    apply_tensors(delta, before, into, loops)
    assert np.array_equal(into["w"].bits, after["w"].bits)
