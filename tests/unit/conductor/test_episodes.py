"""Rewards of an environment in the conductor, beside a scorer's, and samples without a token."""

from gradbus.v1.episode_pb2 import END_REASON_FAILED, Episode
from gradbus.v1.group_pb2 import Group, TeacherRows
from gradbus.v1.reference_service_pb2 import SequenceLogProbs
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward
from gradbus.v1.sample_pb2 import Fork, Sample, Span
from gradbus_conductor.groups.episodes import environment_answer, with_environment
from gradbus_conductor.groups.frozen_models import BASE, FrozenModel, sequences_of
from gradbus_conductor.groups.pending_group import PendingGroup
from gradbus_conductor.groups.scorer import _token_samples
from gradbus_conductor.groups.traces import ServiceCall


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


def forked():
    """A group of a sample with two forks, the first without a token, and one that has forks alone."""
    spans = [[Span(start=0, end=1, version=version, trainable=trains)] for version, trains in ((5, True), (4, True), (2, False))]
    own = Sample(sample_id="3.0", token_ids=b"aaaa", spans=spans[0])
    own.forks.extend([Fork(prompt_ids=b"ppp0"), Fork(prompt_ids=b"ppp1", token_ids=b"bbbbcccc", spans=spans[1])])
    alone = Sample(sample_id="3.1", forks=[Fork(prompt_ids=b"ppp2", token_ids=b"dddd", spans=spans[2])])
    return Group(index=3, version=7, prompt_ids=b"1234", samples=[own, alone])


def test_a_frozen_model_is_asked_about_each_sequence_and_its_answers_are_joined():
    group = forked()
    asked = [(sequence.sample_id, sequence.prompt_ids, sequence.token_ids) for sequence in sequences_of(group)]
    assert asked == [("3.0", b"1234", b"aaaa"), ("3.0#2", b"ppp1", b"bbbbcccc"), ("3.1", b"ppp2", b"dddd")]

    def answer(name, ids, top_k=1):
        rows = TeacherRows(ids=ids * top_k, logprobs=ids * (top_k + 1))
        return SequenceLogProbs(sample_id=name, logprobs=ids.upper(), rows=rows if top_k else None)

    found = {name: answer(name, ids) for name, _, ids in asked}
    answers = FrozenModel(of_teacher=True, top_k=1).answers(group, found)
    assert [(one.sample_id, one.logprobs) for one in answers] == [("3.0", b"AAAABBBBCCCC"), ("3.1", b"DDDD")]
    assert (answers[0].rows.ids, answers[0].rows.logprobs) == (b"aaaabbbbcccc", b"aaaaaaaabbbbccccbbbbcccc")
    assert BASE.answers(group, {"3.0": found["3.0"], "3.1": found["3.1"]}) is None, "a fork lacks"
    assert BASE.answers(group, found | {"3.0#2": SequenceLogProbs(logprobs=b"BBBB")}) is None, "a token lacks"


def test_a_pending_group_counts_all_sequences():
    pending = PendingGroup(forked(), "{}")
    assert pending.tokens == 4
    assert pending.versions == [4, 7], "the oldest of trainable spans; the task's version without one"
    assert pending.oldest_version == 4


def test_a_reward_model_judges_the_sequence_with_which_the_episode_ended():
    found = list(_token_samples(PendingGroup(forked(), "{}"), ServiceCall({})))
    assert [(sample.sample_id, sample.prompt_ids, sample.token_ids) for sample in found] == [
        ("3.0", b"ppp1", b"bbbbcccc"),
        ("3.1", b"ppp2", b"dddd"),
    ]
