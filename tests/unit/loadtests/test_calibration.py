"""What stands in for hardware has the shape that is said of it."""

import numpy as np
import pytest

from gradbus.plan.loop import makespan
from gradbus_load.calibration import EngineTiming, kept_full, response_tokens, scrambled


def test_lengths_are_lognormal_with_a_99th_percentile_of_ten_medians():
    lengths = np.array([response_tokens(seed, 100.0, 100_000) for seed in range(40_000)])
    assert np.median(lengths) == pytest.approx(100.0, rel=0.03)
    assert np.percentile(lengths, 99) == pytest.approx(1000.0, rel=0.06)
    assert np.std(np.log(lengths)) == pytest.approx(0.99, rel=0.03)


def test_a_length_is_its_seeds_and_stays_within_its_bounds():
    lengths = [response_tokens(seed, 20.0, 30) for seed in range(500)]
    assert lengths == [response_tokens(seed, 20.0, 30) for seed in range(500)]
    assert (min(lengths) >= 1, max(lengths)) == (True, 30)
    assert {response_tokens(seed, 0.01, 30) for seed in range(50)} == {1}


def test_neighbouring_seeds_are_scattered_over_63_bits():
    values = [scrambled(seed) for seed in range(4096)]
    assert len(set(values)) == 4096
    assert all(0 <= value < 2**63 for value in values)
    assert np.mean([value / 2**63 for value in values]) == pytest.approx(0.5, abs=0.03)


def test_a_sample_takes_its_prefill_and_its_tokens():
    assert EngineTiming(step_seconds=0.5, prefill_seconds=0.25).seconds(prompt_tokens=8, tokens=4) == 4.0


def test_the_time_alone_is_that_of_slots_which_are_free_first():
    seconds = [4.0, 1.0, 1.0, 1.0, 3.0]
    assert makespan(seconds, 2) == 6.0, "1, 1, 1 and 3 share a slot"
    assert kept_full(seconds, 2) == 5.0
    assert makespan(seconds, 10) == 4.0
