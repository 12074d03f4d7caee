"""The codec of token ids and log-probabilities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE, pack_ids, token_count, unpack_ids, unpack_logprobs


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_come_back_and_are_what_numpy_writes(ids):
    content = pack_ids(ids)
    assert content == np.array(ids, ID_DTYPE).tobytes()
    assert unpack_ids(content) == tuple(ids)
    assert token_count(content) == len(ids)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_log_probabilities_are_read_as_numpy_wrote_them(logprobs):
    assert unpack_logprobs(np.array(logprobs, LOGPROB_DTYPE).tobytes()) == tuple(logprobs)


def test_an_id_beyond_32_bits_is_refused():
    with pytest.raises(Exception, match="format requires"):
        pack_ids([2**31])
