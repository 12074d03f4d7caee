"""No flipped bit passes."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gradbus.errors import CorruptRecordError
from gradbus.experience.records import record_digest, seal, unseal
from gradbus.ids import digest_of


@given(st.binary(max_size=300))
def test_what_is_sealed_comes_back(payload):
    record = seal(payload)
    assert unseal(record, "it") == payload
    assert f"sha256:{record_digest(record)}" == digest_of(payload)


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_flipped_bit_is_detected(payload, data):
    record = bytearray(seal(payload))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecordError, match="group 7"):
        unseal(bytes(record), "group 7")


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_cut_record_is_detected(payload, data):
    record = seal(payload)
    with pytest.raises(CorruptRecordError):
        unseal(record[: data.draw(st.integers(0, len(record) - 1))], "it")


@given(st.binary(max_size=100))
def test_noise_is_no_record(noise):
    with pytest.raises(CorruptRecordError, match="made again"):
        unseal(noise, "it")
