from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradbus_kernels.operators import counter_uniform

MASK = (1 << 64) - 1


def splitmix64(seed: int, position: int) -> int:
    state = (seed + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**31))
def test_uniforms_are_splitmix64(seed, position):
    uniform = counter_uniform(torch.tensor([seed]), torch.tensor([position])).item()
    assert uniform == (splitmix64(seed, position) >> 12) / 2**52
    assert 0.0 <= uniform < 1.0


def test_positions_of_one_seed_are_independent_draws():
    uniforms = counter_uniform(torch.full((100_000,), 7), torch.arange(100_000)).numpy()
    assert abs(uniforms.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(uniforms[:-1], uniforms[1:])[0, 1]) < 0.015
