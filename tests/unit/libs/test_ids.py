import hashlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gradbus.errors import SettingsError
from gradbus.ids import checked_name, digest_of, is_digest, new_run_id, sample_id, sample_seed


@pytest.mark.parametrize("name", ["a", "run-1", "0", "a" * 63])
def test_names_that_are_safe_everywhere(name):
    assert checked_name(name, "the run") == name


@pytest.mark.parametrize("name", ["", "-a", "A", "a.b", "a/b", "..", "a b", "a\n", "a*", "a>", "é", "a" * 64])
def test_what_could_be_a_path_a_subject_or_a_pattern_is_refused(name):
    with pytest.raises(SettingsError, match="the run"):
        checked_name(name, "the run")


def test_a_new_run_id_is_a_name():
    assert checked_name(new_run_id(), "the run")
    assert new_run_id() != new_run_id()


def test_a_digest_is_recognised():
    digest = digest_of(b"weights")
    assert digest == "sha256:" + hashlib.sha256(b"weights").hexdigest()
    assert is_digest(digest)
    assert not any(map(is_digest, ["", digest[7:], digest + "0", digest.upper(), digest + "\n"]))


@given(st.integers(0, 2**63 - 1), st.sampled_from(["train", "eval"]), st.integers(0, 10**9), st.integers(0, 1023))
def test_a_seed_is_a_function_of_the_samples_position_and_fits_63_bits(seed, purpose, index, n):
    value = sample_seed(seed, purpose, index, n)
    assert value == sample_seed(seed, purpose, index, n)
    assert 0 <= value < 2**63


def test_every_part_of_a_position_changes_the_seed():
    places = {(seed, purpose, index, n) for seed in (0, 1) for purpose in ("train", "eval") for index in range(12) for n in range(12)}
    assert len({sample_seed(*place) for place in places}) == len(places)
    assert sample_id(1, 11) != sample_id(11, 1)
