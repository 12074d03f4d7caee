"""Samples of several sequences: their rows, and what a step makes of them as of one response."""

from dataclasses import fields, replace

import numpy as np
import pytest

from gradbus.algorithms import Algorithm
from gradbus.spec import AlgorithmSpec, InnerSpec
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Fork, Sample, Span
from gradbus_trainer.learners.loss_inputs import policy_settings, policy_tokens
from gradbus_trainer.step.batch import Batch, by_sample, micro_batches, prompt_groups, sample_numbers
from gradbus_trainer.step.groups import decode_group
from gradbus_trainer.step.kl_in_reward import with_kl_in_reward
from gradbus_trainer.step.minibatches import minibatches
from gradbus_trainer.step.whitening import whitened


def sequence(kind, ids, prompt=(), version=5, **more):
    """Log-probabilities are -0.01 times the ids; the second token is a tool's."""
    spans = [Span(start=at, end=at + 1, version=version, trainable=at != 1) for at in range(len(ids))]
    made = {"prompt_ids": np.array(prompt, "<i4").tobytes()} if kind is Fork else {}
    logprobs = (np.array(ids) * -0.01).astype("<f4").tobytes()
    return kind(token_ids=np.array(ids, "<i4").tobytes(), logprobs=logprobs, spans=spans, **made, **more)


def entry(samples, rewards=(0.0, 1.0, 2.0), **more):
    group = Group(index=4, prompt_ids=np.array([7, 8], "<i4").tobytes(), samples=samples)
    scored = [
        SampleReward(sample_id=s.sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=r)
        for s, r in zip(samples, rewards[: len(samples)], strict=True)
    ]
    return LogEntry(index=4, verdict=Verdict.VERDICT_TRAIN, group=group.SerializeToString(), rewards=scored, **more)


@pytest.fixture
def samples():
    """One sequence; its own and two forks; two forks alone, the second of which was cut off."""
    plain = sequence(Sample, [10, 11, 12], sample_id="4.0", n=0)
    forked = sequence(Sample, [20, 21], sample_id="4.1", n=1)
    forked.forks.extend([sequence(Fork, [22, 23, 24], (7, 8, 20), version=3), sequence(Fork, [25], (9,))])
    alone = Sample(sample_id="4.2", n=2, finish_reason=FinishReason.FINISH_REASON_LENGTH)
    alone.forks.extend([sequence(Fork, [30], (1, 2)), sequence(Fork, [31, 32], (3,))])
    return [plain, forked, alone]


def decode(found, credits_turns=False, **algorithm):
    return decode_group(found, Algorithm(AlgorithmSpec(**{"normalize_std": False} | algorithm), 8, credits_turns=credits_turns))


def test_each_sequence_is_a_row_with_its_own_prompt_and_its_samples_advantage(samples):
    found = decode(entry(samples))
    assert [row.token_ids.tolist() for row in found.rows] == [[10, 11, 12], [20, 21], [22, 23, 24], [25], [30], [31, 32]]
    assert [row.prompt_ids.tolist() for row in found.rows] == [[7, 8], [7, 8], [7, 8, 20], [9], [1, 2], [3]]
    assert [set(row.advantages.tolist()) for row in found.rows] == [{-1.0}, {0.0}, {0.0}, {0.0}, {1.0}, {1.0}]
    assert [row.trainable.tolist() for row in found.rows[2:4]] == [[True, False, True], [True]]
    for row in found.rows:
        assert row.behaviour_logprobs.tolist() == pytest.approx((row.token_ids * -0.01).tolist())
    assert (found.lengths, found.masked, found.truncated) == ([3, 6, 3], 0, 1)
    assert found.oldest_versions == [5, 3, 5], "the oldest of all sequences"
    assert sample_numbers(found.rows) == [0, 1, 1, 1, 2, 2]
    assert [len(rows) for rows in by_sample(found.rows)] == [1, 3, 2]
    assert len(prompt_groups(found.rows)) == 1


def test_a_masked_sample_is_one_whatever_its_sequences(samples):
    found = decode(entry(samples), truncated="mask")
    assert (found.masked, len(found.rows)) == (1, 4)
    assert decode(entry(samples[:2]), filter="none").rows[0].origin == (4, 0), "all rows of the group have an origin"
    assert decode(entry(samples[:1] * 2), filter="none").rows[0].origin is None


def test_a_groups_forks_without_a_prompt_are_refused(samples):
    samples[1].forks[0].prompt_ids = b""
    with pytest.raises(ValueError, match="no prompt"):
        decode(entry(samples))


def test_what_a_frozen_model_says_is_of_all_sequences(samples):
    references = [(np.arange(length) / 10).astype("<f4").tobytes() for length in (3, 6, 3)]
    found = decode(entry(samples, reference_logprobs=references), kl=0.1)
    parts = [row.reference_logprobs.tolist() for row in found.rows]
    assert parts == [pytest.approx(part, abs=1e-6) for part in ([0, 0.1, 0.2], [0, 0.1], [0.2, 0.3, 0.4], [0.5], [0], [0.1, 0.2])]
    with pytest.raises(ValueError, match="one element for each token"):
        decode(entry(samples, reference_logprobs=[references[0], references[0], references[2]]), kl=0.1)


def test_the_kl_in_the_reward_counts_all_sequences(samples):
    """One number a sample for GRPO; by token for REINFORCE, where those of later sequences come after a token."""
    references = [np.zeros(length, "<f4").tobytes() for length in (3, 6, 3)]
    found = entry(samples, (0.0, 0.0, 0.0), reference_logprobs=references)
    sums = np.array([0.22, 0.20 + 0.22 + 0.24 + 0.25, 0.61])
    by_sample_ = decode(found, kl=1.0, kl_place="reward", filter="none")
    assert [row.advantages[0] for row in by_sample_.rows] == pytest.approx(np.repeat(sums - sums.mean(), [1, 3, 2]).tolist(), abs=1e-6)
    fields_ = {"advantage": "reinforce", "whiten": "none", "kl": 1.0, "kl_place": "reward", "filter": "none"}
    by_token = decode(found, **fields_)
    assert by_token.rows[1].advantages.tolist() == pytest.approx([0.91, 0.71], abs=1e-6)
    assert by_token.rows[2].advantages.tolist() == pytest.approx([0.71, 0.49, 0.49], abs=1e-6)
    assert by_token.rows[3].advantages.tolist() == pytest.approx([0.25], abs=1e-6)
    whole_step = with_kl_in_reward([replace(row, advantages=row.advantages * 0) for row in decode(found, kl=0.1, filter="none").rows], 1.0)
    for one, other in zip(whole_step, by_token.rows, strict=True):
        np.testing.assert_array_equal(one.advantages, other.advantages)


def test_a_value_counts_after_the_last_sequence_that_was_cut_off(samples):
    found = decode(entry(samples), advantage="gae", truncated="bootstrap", nll=0.1, filter="none")
    assert [row.marks.cut_off for row in found.rows] == [False] * 5 + [True]
    assert [row.marks.best for row in found.rows] == [False] * 4 + [True] * 2


def test_a_value_counts_after_the_last_turn_that_was_cut_off_in_whichever_sequence_it_is(samples):
    """Turns 0 and 2 are the sample's own, its forks are of turns 1; of a sample with forks alone the first has the last turn."""
    for sample, drawn in ((samples[1], (0, 1, 2, 0)), (samples[2], (2, 1))):
        sample.finish_reason = FinishReason.FINISH_REASON_LENGTH
        for sequence_ in drawn:
            sample.episode.turns.add(sequence=sequence_)
    found = decode(entry(samples), advantage="gae", truncated="bootstrap", filter="none")
    assert [row.token_ids.tolist() for row in found.rows if row.marks.cut_off] == [[20, 21], [30]]


def test_a_turn_has_its_own_advantage_in_its_sequence(samples):
    """Returns: 4 of the plain one; 4 and then 2 of the forked one, and 4 of its fork; 1 of the one with forks alone."""
    samples[0].episode.turns.add(start=0, end=3, reward=4.0)
    samples[1].episode.turns.add(start=0, end=1, reward=2.0)
    samples[1].episode.turns.add(start=1, end=2, reward=0.5)
    samples[1].episode.turns.add(start=0, end=3, reward=1.5, sequence=1)
    samples[2].episode.turns.add(start=0, end=1, reward=1.0, sequence=1)
    found = decode(entry(samples, (4.0, 4.0, 1.0)), credits_turns=True)
    expected = [[1.0] * 3, [1.0, 2.0 - 7 / 3], [1.0] * 3, [1.0], [-2.0], [-2.0, -2.0]]
    assert [row.advantages.tolist() for row in found.rows] == [pytest.approx(row, abs=1e-6) for row in expected]


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_inputs_of_the_loss_are_those_of_one_sequence_bit_for_bit(make_spec, make_batch, aggregate, ratio, split):
    """So in any precision a split, a packing or a number of sequences changes the loss as little as the model's passes do."""
    batch = make_batch()
    parts = Batch(0, split(batch.samples))
    spec = make_spec(algorithm={"aggregate": "sequence", "ratio": "sequence"} if ratio == "sequence" else {"aggregate": aggregate})
    settings = replace(policy_settings(spec.algorithm), sequence_mask=(0.5, 2.0), nll=0.1)
    assert len(parts.samples) > len(batch.samples)
    assert parts.totals == batch.totals
    found, expected = (policy_tokens(of.samples, of.row_weights(spec), of.totals, settings, "cpu") for of in (parts, batch))
    for field in fields(found):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert (one is None and other is None) or one.equal(other), field.name


@pytest.mark.parametrize("by", ["tokens", "samples"])
def test_whitening_is_that_of_samples(make_batch, by, split):
    samples = make_batch().samples
    found, expected = whitened(split(samples), by), split(whitened(samples, by))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.advantages, other.advantages)


def test_a_sample_is_in_one_piece_only_where_that_is_needed(make_batch, split):
    rows = split(make_batch().samples)
    pieces = micro_batches(Batch(0, rows), 12, whole_samples=True)
    assert [row for piece in pieces for row in piece] == rows
    assert sum(len(set(sample_numbers(piece))) for piece in pieces) == 12
    assert len(micro_batches(Batch(0, rows), 12)) > len(pieces)


def test_a_minibatch_has_whole_groups(make_batch, split):
    rows = split(make_batch().samples)
    found = list(minibatches(Batch(0, rows), InnerSpec(minibatches=3), 5))
    assert len(found) == 3
    assert all(len({row.origin.group for row in part.samples}) == 1 and len(by_sample(part.samples)) == 4 for part in found)
