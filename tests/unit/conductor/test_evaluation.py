import json

import pytest

from gradbus.experience.components import MAX_NAMES
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import Sample
from gradbus_conductor.evaluation.results import EvaluationResult, HeldOutLoss, decode_result, encode_result, next_due, summarise

OK, INVALID = RewardStatus.REWARD_STATUS_OK, RewardStatus.REWARD_STATUS_INVALID


def entry(reward, status=OK, **components):
    return LogEntry(rewards=[SampleReward(status=status, reward=reward, components=components)])


def pair(chosen, rejected):
    """A held-out pair with the scores of a reward model."""
    samples = [Sample(sample_id="0.0", n=0), Sample(sample_id="0.1", n=1)]
    rewards = [
        SampleReward(sample_id=sample.sample_id, status=OK, reward=score) for sample, score in zip(samples, (chosen, rejected), strict=True)
    ]
    return LogEntry(group=Group(samples=samples).SerializeToString(), rewards=rewards)


@pytest.mark.parametrize(("steps", "every", "due"), [(4, 2, [0, 2, 4]), (5, 2, [0, 2, 4, 5]), (3, 50, [0, 3]), (1, 1, [0, 1])])
def test_before_the_first_step_every_so_often_and_at_the_end(make_spec, steps, every, due):
    spec = make_spec(data={"train": "t", "eval": "e"}, schedule={"steps": steps}, evaluation={"every": every})
    found = [-1]
    while (version := next_due(spec, found[-1])) is not None:
        found.append(version)
    assert found[1:] == due


def test_without_held_out_rows_nothing_is_due(make_spec):
    assert next_due(make_spec(), -1) is None


def test_means_are_over_the_rows_that_could_be_judged():
    result = summarise(3, [entry(1.0, exact=1.0), entry(0.5, exact=0.0), entry(0.0, INVALID, exact=0.0)], "exact")
    assert result == EvaluationResult(3, 2, 0.75, {"exact": 0.5}, 0.5)


def test_the_metric_is_the_reward_where_no_part_has_its_name():
    assert summarise(0, [entry(0.25), entry(0.75)], "reward").accuracy == 0.5


def test_a_part_that_some_rows_lack_is_the_mean_of_those_that_have_it():
    assert summarise(0, [entry(1.0, exact=1.0), entry(0.0)], "reward").components == {"exact": 1.0}


@pytest.mark.parametrize("entries", [[], [entry(0.0, INVALID)]])
def test_where_no_row_could_be_judged_there_is_no_reward_of_zero(entries):
    result = summarise(0, entries, "reward")
    assert result == EvaluationResult(0, 0, None, {}, None)
    assert decode_result(encode_result(result)) == result


def test_a_mean_does_not_depend_on_the_order_of_rows():
    entries = [entry(0.1 * n, exact=0.3 * n) for n in range(50)]
    assert summarise(0, entries, "exact") == summarise(0, entries[::-1], "exact")


def test_a_result_survives_its_key_in_the_bucket():
    results = [summarise(version, [entry(0.5, exact=1.0)], "exact") for version in (0, 10)]
    assert decode_result(encode_result(results[1])) == results[1]
    assert decode_result(json.dumps([result.to_json() for result in results]).encode()) == results[1], "an earlier release kept all"
    assert decode_result(None) is None


def test_of_components_named_differently_in_each_row_some_are_shown_and_the_metric_is_among_them():
    rows = [entry(1.0, **{f"{n}.{part}": 1.0 for part in range(64)}) for n in range(100)]
    result = summarise(0, [*rows, entry(1.0, exact=0.5)], "exact")
    assert result.accuracy == result.components["exact"] == 0.5
    assert len(result.components) == MAX_NAMES + 1


def test_a_held_out_loss_survives_its_key_and_keeps_what_is_finite(make_spec):
    spec = make_spec(kind="reward_model", reward={}, data={"train": "t", "eval": "e"})
    rows = [pair(0.5, -0.5), pair(0.25, 0.25)]
    result = HeldOutLoss.of(3, rows, spec)
    assert (result.version, result.samples, result.accuracy, result.metrics["margin"]) == (3, 2, 0.75, 0.5)
    assert decode_result(encode_result(result)) == result
    broken = HeldOutLoss.of(4, [*rows, pair(float("nan"), 0.0)], spec)
    assert (broken.loss, broken.accuracy, broken.metrics) == (None, None, {})
    assert decode_result(encode_result(broken)) == broken
