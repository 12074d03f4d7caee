"""Pairs of responses with drawn log-probabilities, and the losses as settings."""

from itertools import chain

import pytest
import torch
from hypothesis import strategies as st

from gradbus_kernels.operators import PairTokens, PreferenceSettings

LOSSES = ("dpo", "ipo", "simpo", "orpo")


def pairs_of(lengths, seed=0):
    """Float64 log-probabilities and tokens of pairs with these lengths; a fifth of the tokens, never a whole sequence, is not trained."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(list(chain(*lengths)), dtype=torch.int64)
    sequences = torch.arange(len(counts)).repeat_interleave(counts)
    draw = lambda scale: torch.randn(len(sequences), generator=generator, dtype=torch.float64) * scale  # noqa: E731
    logprobs = -draw(1.5).abs() - 0.01
    trained = torch.rand(len(sequences), generator=generator) < 0.8
    trained[counts.cumsum(0) - 1] = True
    return logprobs, PairTokens(sequences, trained, len(counts) // 2, logprobs + draw(0.4))


@pytest.fixture(scope="session")
def make_pairs():
    return pairs_of


@pytest.fixture(scope="session")
def any_pairs():
    """Of the update: log-probabilities, tokens and the lengths of its pairs, as a strategy of hypothesis."""
    lengths = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6)
    return st.builds(lambda lengths, seed: (*pairs_of(lengths, seed), lengths), lengths, st.integers(0, 999))


@pytest.fixture(scope="session")
def any_preference():
    """Settings of every loss, as a strategy of hypothesis."""
    smoothing = {"dpo": st.floats(0.0, 0.49)}
    return st.sampled_from(LOSSES).flatmap(
        lambda loss: st.builds(
            PreferenceSettings,
            loss=st.just(loss),
            beta=st.floats(0.01, 3.0),
            margin=st.floats(0.0, 2.0),
            label_smoothing=smoothing.get(loss, st.just(0.0)),
        )
    )


@pytest.fixture(params=LOSSES)
def loss_name(request):
    return request.param
