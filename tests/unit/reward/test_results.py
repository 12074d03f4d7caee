import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.results import MAX_COMPONENTS, complete_results, failed_results

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR
SAMPLES = [reward_pb2.ScoreSample(sample_id=f"0.{n}") for n in range(3)]


def given_for(sample_id, status=OK, reward=1.0, **fields):
    return reward_pb2.SampleReward(sample_id=sample_id, status=status, reward=reward, **fields)


RESULTS = st.builds(
    given_for,
    st.sampled_from(["0.0", "0.1", "0.2", "0.9", ""]),
    status=st.sampled_from([0, 1, 2, 3, 7]),
    reward=st.floats(),
    components=st.dictionaries(st.text(max_size=3), st.floats(), max_size=3),
)


@given(st.lists(RESULTS, max_size=8))
def test_whatever_is_returned_each_sample_gets_one_valid_result(results):
    completed = complete_results(SAMPLES, results)
    assert [result.sample_id for result in completed] == ["0.0", "0.1", "0.2"]
    for result in completed:
        assert result.status in {OK, INVALID, ERROR}
        assert result.status == OK or (result.reason and result.reward == 0.0)
        assert all(math.isfinite(value) for value in (result.reward, *result.components.values()))


def test_results_are_matched_by_id_not_by_position():
    completed = complete_results(SAMPLES, [given_for("0.2", reward=2.0), given_for("0.0", reward=0.0), given_for("0.1", reward=1.0)])
    assert [result.reward for result in completed] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([], "no result"),
        ([given_for("9.9")], "1 result\\(s\\) for ids it was not asked"),
        ([given_for("0.0"), given_for("0.0")], "returned 2 results"),
        ([given_for("0.0", reward=math.nan)], "nan"),
        ([given_for("0.0", reward=-math.inf)], "inf"),
        ([given_for("0.0", reward=1e200)], "1e\\+200; return a number within ±1e\\+06"),
        ([given_for("0.0", reward=-1.0000001e6)], "within"),
        ([given_for("0.0", components={"part": 1e200})], "scale it to at most 1e\\+30"),
        ([given_for("0.0", components={"part": math.nan})], "'part'"),
        ([given_for("0.0", components={str(n): 1.0 for n in range(MAX_COMPONENTS + 1)})], "components"),
        ([given_for("0.0", status=0)], "unknown status 0"),
        ([given_for("0.0", status=7)], "unknown status 7"),
    ],
)
def test_an_invalid_result_is_an_error_with_its_reason(results, reason):
    (result,) = complete_results(SAMPLES[:1], results)
    assert (result.status, result.permanent) == (ERROR, True)
    assert re.search(reason, result.reason)


def test_a_reward_at_the_bound_is_kept():
    assert [result.reward for result in complete_results(SAMPLES[:1], [given_for("0.0", reward=-1e6)])] == [-1e6]


def test_an_error_of_the_scorer_is_permanent_if_the_scorer_says_so():
    for permanent in (True, False):
        (result,) = complete_results(SAMPLES[:1], [given_for("0.0", status=ERROR, reason="no", permanent=permanent)])
        assert result.permanent is permanent
    (result,) = complete_results(SAMPLES[:1], [given_for("0.0", permanent=True)])
    assert not result.permanent


def test_fields_that_the_contract_does_not_have_are_left_out():
    unknown = bytes([0xFA, 0x3F, 100]) + bytes(100)  # field 1023: a hundred bytes
    result = reward_pb2.SampleReward.FromString(given_for("0.0").SerializeToString() + unknown)
    assert complete_results(SAMPLES[:1], [result])[0].SerializeToString() == given_for("0.0").SerializeToString()


def test_failures_on_the_way_to_a_scorer_are_not_permanent_and_those_of_a_grader_are():
    causes = {cause: failed_results(SAMPLES[:1], "x", cause)[0].permanent for cause in ("timeout", "unreachable", "refused", "grader")}
    assert causes == {"timeout": False, "unreachable": False, "refused": False, "grader": True}


def test_invalid_stays_invalid_and_loses_its_reward():
    (result,) = complete_results(SAMPLES[:1], [given_for("0.0", status=INVALID, reward=math.nan, reason="empty")])
    assert (result.status, result.reward, result.reason) == (INVALID, 0.0, "empty")


def test_failed_results_cover_every_sample():
    assert [(result.sample_id, result.status, result.reason) for result in failed_results(SAMPLES[:2], "down", "unreachable")] == [
        ("0.0", ERROR, "down"),
        ("0.1", ERROR, "down"),
    ]
