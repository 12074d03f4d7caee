"""With `numerics = "batch_invariant"`, the trainer's log-probabilities equal the rollout's bit for bit."""

import pytest

from gradbus.errors import SpecError


def differences(lab, run):
    """For every step: mean absolute log-probability difference of trainer and rollout, and the ratio's mean and maximum."""
    steps = lab.events(run["id"], "metrics")
    assert [step["noop"] for step in steps] == [False] * run["steps"]
    return [(step["logprob_diff"], step["ratio_mean"], step["ratio_max"]) for step in steps]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_on_policy_the_difference_is_exactly_zero(lab, spec, models, family):
    on_policy = {"max_staleness": 0, "steps": 4}
    run = lab.train(
        spec(
            numerics="batch_invariant",
            model={"path": str(models / family)},
            schedule=on_policy,
            rollout={"max_new_tokens": 40, "temperature": 0.8},
            trainer={"micro_batch_tokens": 200, "learning_rate": 0.01},
        )
    )
    found = differences(lab, run)
    assert [step[0] for step in found] == [0.0] * 4
    assert all(ratio == pytest.approx(1.0, abs=1e-6) and highest == 1.0 for _, ratio, highest in found)


def test_fast_numerics_differ_in_the_last_bits(lab, spec):
    """Without this difference the test above would prove nothing."""
    run = lab.train(spec(schedule={"max_staleness": 0, "steps": 3}, rollout={"max_new_tokens": 40, "temperature": 0.8}))
    assert all(0.0 < step[0] < 1e-5 for step in differences(lab, run))


def test_what_cannot_agree_is_refused_with_what_to_do(lab, spec):
    wrong = spec(numerics="batch_invariant", trainer={"lora": {}, "threads": 2}, weights={"dtype": "bf16"}, rollout={"engine": "sglang"})
    with pytest.raises(SpecError) as refused:
        lab.submit(wrong)
    assert [fault.path for fault in refused.value.faults] == ["numerics"] * 4
