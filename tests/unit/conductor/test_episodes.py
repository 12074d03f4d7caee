"""Rewards of an environment in the conductor, beside a scorer's, and samples without a token."""

from gradbus.v1.episode_pb2 import END_REASON_FAILED, Episode
from gradbus.v1.group_pb2 import Group
from gradbus.v1.reference_service_pb2 import SequenceLogProbs
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward
from gradbus.v1.sample_pb2 import Sample
from gradbus_conductor.groups.episodes import environment_answer, with_environment
from gradbus_conductor.groups.frozen_models import BASE, sequences_of


def played(reward=None, reason="", **components):
    outcome = SampleReward(status=REWARD_STATUS_OK, reward=reward, components=components) if reward is not None else None
    outcome = outcome or SampleReward(status=REWARD_STATUS_INVALID, reason=reason)
    return Sample(sample_id="3.1", token_ids=b"abcd", episode=Episode(outcome=outcome))


def test_the_answer_of_an_environment_is_that_of_its_sample():
    answer = environment_answer(played(0.5, found=1.0))
    assert (answer.sample_id, answer.status, answer.reward, dict(answer.components)) == ("3.1", REWARD_STATUS_OK, 0.5, {"found": 1.0})
    failed = environment_answer(played(reason="no disk"))
    assert (failed.sample_id, failed.status, failed.reason) == ("3.1", REWARD_STATUS_INVALID, "no disk")
    assert environment_answer(Sample(sample_id="3.1")).status == REWARD_STATUS_INVALID


def test_a_scorers_reward_is_added_and_a_failure_of_either_masks():
    scored = SampleReward(sample_id="3.1", status=REWARD_STATUS_OK, reward=0.25, components={"style": 0.25})
    joined = with_environment(played(0.5, found=1.0), scored)
    assert (joined.status, joined.reward) == (REWARD_STATUS_OK, 0.75)
    assert dict(joined.components) == {"environment": 0.5, "scorer": 0.25, "found": 1.0, "style": 0.25}
    invalid = SampleReward(sample_id="3.1", status=REWARD_STATUS_INVALID, reason="no text")
    assert with_environment(played(0.5), invalid) == invalid
    assert with_environment(played(reason="no disk"), scored).reason == "no disk"


def test_a_sample_without_a_token_is_not_asked_about_and_has_no_log_probabilities():
    empty = Sample(sample_id="3.0", episode=Episode(end_reason=END_REASON_FAILED))
    group = Group(index=3, prompt_ids=b"1234", samples=[empty, played(0.5)])
    assert [sequence.sample_id for sequence in sequences_of(group)] == ["3.1"]
    found = {"3.1": SequenceLogProbs(sample_id="3.1", logprobs=b"wxyz")}
    assert [answer.logprobs for answer in BASE.answers(group, found)] == [b"", b"wxyz"]
    assert BASE.answers(group, {}) is None
