"""A KL to a version of the run: which one it is, which are kept for it, and who computes."""

import pytest

from gradbus.algorithms import learner_computes_reference, needs_reference_logprobs
from gradbus.errors import SpecError
from gradbus.spec import parse_spec


def spec(trainer=None, schedule=None, **algorithm):
    return parse_spec(
        {
            "name": "p",
            "model": {"path": "m"},
            "data": {"train": "t"},
            "reward": {"service": "grpc://scorer:1"},
            "algorithm": algorithm,
            "schedule": {"steps": 100} | (schedule or {}),
            "trainer": trainer or {},
        }
    )


def test_the_reference_is_the_version_of_the_last_multiple():
    moving, fixed = spec(kl=0.1, kl_reference_steps=10), spec(kl=0.1)
    assert [moving.reference_version(version) for version in (0, 9, 10, 19, 20, 99)] == [0, 0, 10, 10, 20, 90]
    assert {fixed.reference_version(version) for version in range(100)} == {0}


@pytest.mark.parametrize("staleness", [0, 1, 12])
def test_a_resume_has_each_version_that_its_groups_are_compared_with(staleness):
    """Groups of step s have the version s - staleness; those of steps before the resume are trained."""
    run = spec(schedule={"max_staleness": staleness}, kl=0.1, kl_reference_steps=10)
    for step in range(60):
        kept = {version for version in range(step + 1) if run.needs_version(version, step)}
        for later in range(step, 60):
            version = run.oldest_allowed_version(later)
            assert version > step or version in kept
            reference = run.reference_version(version)
            assert reference > step or reference in kept or reference == 0, "the base model"
        assert len(kept) <= staleness + 2, "and no more"


def test_without_it_the_versions_that_are_kept_are_those_that_sample():
    run = spec(schedule={"max_staleness": 2}, kl=0.1)
    assert [version for version in range(11) if run.needs_version(version, 10)] == [8, 9, 10]


def test_adapters_are_then_compared_by_the_reference_service_also_in_the_reward():
    lora = {"lora": {"rank": 2}}
    moving = spec(lora, kl=0.1, kl_reference_steps=10, kl_place="reward", filter="none")
    assert (needs_reference_logprobs(moving), learner_computes_reference(moving)) == (True, False)
    assert learner_computes_reference(spec(lora, kl=0.1))


@pytest.mark.parametrize("algorithm", [{"kl_reference_steps": 10}, {"kl": 0.1, "kl_reference_steps": 0}], ids=str)
def test_a_reference_that_nothing_is_compared_with_is_refused(algorithm):
    with pytest.raises(SpecError) as refused:
        spec(**algorithm)
    assert [fault.path for fault in refused.value.faults] == ["algorithm.kl_reference_steps"]
