"""Score centring: what goes with it, and what would make it the mean of something else."""

import pytest

from gradbus.algorithms import metric_names_of, needs_reference_logprobs, needs_reference_service
from gradbus.errors import SpecError
from gradbus.spec import parse_spec


def body(**sections):
    algorithm = {"name": "score_centering"} | sections.pop("algorithm", {})
    whole = {
        "name": "p",
        "model": {"path": "m"},
        "data": {"train": "t"},
        "reward": {"service": "grpc://scorer:1"},
        "schedule": {"steps": 9},
    }
    return whole | {"algorithm": algorithm} | {name: whole.get(name, {}) | fields for name, fields in sections.items()}


def test_the_preset_truncates_the_ratio_at_two_and_centres_by_64_tokens():
    algorithm = parse_spec(body()).algorithm
    assert (algorithm.trust_region, algorithm.clip, algorithm.centering) == ("cap", (1.0, 1.0), 64)


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"trust_region": "band"},
        {"trust_region": "none", "importance": "none"},
        {"advantage": "rloo", "normalize_std": False},
        {"kl": 0.1, "kl_estimator": "k2"},
        {"name": "dapo", "trust_region": "cap", "centering": 1},
    ],
    ids=str,
)
def test_a_weight_of_single_tokens_can_be_centred(algorithm):
    spec = parse_spec(body(algorithm=algorithm))
    assert (needs_reference_service(spec), needs_reference_logprobs(spec)) == (True, spec.algorithm.kl > 0)
    assert "total_variation" in metric_names_of(spec)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (body(algorithm={"trust_region": "clip"}), "what trust_region = clip weighs a token with"),
        (body(algorithm={"trust_region": "mass"}), "what trust_region = mass weighs a token with"),
        (body(algorithm={"trust_region": "soft"}), "what trust_region = soft weighs a token with"),
        (body(algorithm={"trust_region": "none"}), "the mean of the score is 0 already"),
        (body(algorithm={"trust_region": "none", "ratio": "product", "aggregate": "sequence"}), "that of its sequence"),
        (body(algorithm={"sequence_mask": [0.5, 2.0]}), "sequence_mask drops a token for what others are"),
        (body(algorithm={"off_policy_mask": 0.5}), "off_policy_mask drops a token for what others are"),
        (body(algorithm={"second_moment": 0.1}), "second_moment drops a token for what others are"),
        (body(algorithm={"kl": 0.1, "kl_estimator": "unbiased"}), "weighs its own score with the ratio"),
        (body(schedule={"mode": "free"}), 'another schedule.mode than "free"'),
        (body(weights={"transport": "delta"}), "needs its whole files"),
        (body() | {"numerics": "batch_invariant"}, "by other operators"),
        (body(rollout={"engine": "sglang", "routing_replay": True}), "computed with other experts"),
        (body(rollout={"max_new_tokens": 65_537, "group_size": 1}), "the product max_new_tokens · centering is too large"),
    ],
)
def test_the_mean_of_something_else_is_refused_with_the_reason(given, words):
    with pytest.raises(SpecError) as refused:
        parse_spec(given)
    [fault] = [fault for fault in refused.value.faults if fault.path == "algorithm.centering"]
    assert words in str(fault)


def test_a_loss_over_a_teachers_rows_has_no_score_to_centre():
    given = body(algorithm={"name": "opd", "importance": "none", "trust_region": "none", "centering": 8}) | {
        "teacher": {"path": "t", "top_k": 8}
    }
    del given["reward"]
    with pytest.raises(SpecError, match=r"the loss of teacher\.top_k is the KL alone"):
        parse_spec(given)
