"""From the log's entries to a batch's rows, and to the statistics that are charted."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from gradbus.algorithms import UNMARKED, Algorithm
from gradbus.spec import AlgorithmSpec
from gradbus.v1.group_pb2 import Group, LogEntry, TeacherRows, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus_trainer.step.batch_builder import build_batch
from gradbus_trainer.step.groups import DecodedGroup, LoggedGroup, decode_group

OK, INVALID = RewardStatus.REWARD_STATUS_OK, RewardStatus.REWARD_STATUS_INVALID
STOP, LENGTH = FinishReason.FINISH_REASON_STOP, FinishReason.FINISH_REASON_LENGTH


def sample(index, n, length=3, version=5, finish=STOP):
    tokens = np.arange(length, dtype="<i4") + 100 * index + 10 * n
    logprobs = np.full(length, -0.5 - n, dtype="<f4")
    return Sample(
        sample_id=f"{index}.{n}",
        n=n,
        token_ids=tokens.tobytes(),
        logprobs=logprobs.tobytes(),
        spans=[Span(start=0, end=length, version=version, trainable=True)],
        finish_reason=finish,
    )


def collected(index, rewards, samples=None, verdict=Verdict.VERDICT_TRAIN, **fields):
    samples = samples or [sample(index, n) for n in range(len(rewards))]
    group = Group(index=index, prompt_ids=np.array([7, index], "<i4").tobytes(), samples=samples)
    scored = [SampleReward(sample_id=f"{index}.{n}", status=status, reward=reward) for n, (status, reward) in enumerate(rewards)]
    entry = LogEntry(index=index, verdict=verdict, group=group.SerializeToString(), rewards=reversed(scored), **fields)
    return logged(entry, f"digest {index}")


def logged(entry, digest=""):
    return LoggedGroup(entry, digest, 1, DecodedGroup())


def build(step, groups, algorithm=None, teacher_weight=0.0, **options):
    algorithm = Algorithm(algorithm or AlgorithmSpec(), 8, teacher_weight)
    return build_batch(step, [replace(group, decoded=decode_group(group.entry, algorithm)) for group in groups], **options)


def single(advantages):
    """That of every token."""
    (value,) = set(advantages.tolist())
    return value


def test_rows_are_in_order_of_index_and_n_whatever_the_order_of_answers():
    items = [collected(index, [(OK, 0.0), (OK, 1.0), (OK, 3.0)]) for index in (4, 5)]
    batch, _ = build(5, items)
    assert [int(row.token_ids[0]) for row in batch.samples] == [400, 410, 420, 500, 510, 520]
    assert {row.advantages.dtype for row in batch.samples} == {np.dtype(np.float32)}
    assert [len(row.advantages) for row in batch.samples] == [len(row.token_ids) for row in batch.samples]
    advantages = [single(row.advantages) for row in batch.samples]
    deviation = math.sqrt(7 / 3)
    assert advantages[:3] == pytest.approx([(reward - 4 / 3) / (deviation + 1e-4) for reward in (0.0, 1.0, 3.0)])
    assert advantages[:3] == advantages[3:]
    np.testing.assert_array_equal(batch.samples[4].behaviour_logprobs, np.full(3, -1.5, np.float32))
    np.testing.assert_array_equal(batch.samples[4].prompt_ids, [7, 5])


@pytest.mark.parametrize("field", ["token_ids", "logprobs"])
@pytest.mark.parametrize("moved", [1, 2, 4])
def test_arrays_that_do_not_belong_to_their_tokens_are_refused(field, moved):
    samples = [sample(0, n) for n in range(2)]
    contents = getattr(samples[0], field) + getattr(samples[1], field)
    middle = len(contents) // 2 - moved  # together they have as many bytes as before
    for part, content in zip(samples, (contents[:middle], contents[middle:]), strict=True):
        setattr(part, field, content)
    with pytest.raises(ValueError, match="one element for each token"):
        build(0, [collected(0, [(OK, 0.0), (OK, 1.0)], samples)])


def test_reference_logprobs_of_other_lengths_are_refused():
    lengths = [[2, 4], [3]]
    for reference in ([bytes(4 * length) for length in of] for of in lengths):
        with pytest.raises(ValueError, match="one element for each token"):
            build(0, [collected(0, [(OK, 0.0), (OK, 1.0)], reference_logprobs=reference)])


def test_a_response_without_tokens_is_no_row_and_its_reward_counts():
    batch, stats = build(0, [collected(0, [(OK, 0.0), (OK, 1.0)], [sample(0, 0, length=0), sample(0, 1)])])
    (row,) = batch.samples
    assert len(row.token_ids) == 3
    assert single(row.advantages) > 0.0
    assert (stats.masked, stats.lengths, stats.rewards) == (1, [0, 3], [1.0, 0.0])


def test_masks_of_samples_of_one_span_are_views_of_one():
    batch, _ = build(0, [collected(0, [(OK, 0.0), (OK, 1.0), (OK, 2.0)], [sample(0, n, length=16 + n) for n in range(3)])])
    masks = [row.trainable for row in batch.samples]
    assert [len(mask) for mask in masks] == [16, 17, 18]
    assert all(mask.all() and not mask.flags.writeable for mask in masks)
    assert np.shares_memory(masks[0], masks[2]), "a mask of its own for each length may take hundreds of megabytes"


def test_masked_samples_are_absent_and_leave_the_mean():
    items = [collected(0, [(OK, 1.0), (INVALID, 99.0), (OK, 3.0)])]
    batch, stats = build(0, items, AlgorithmSpec(normalize_std=False))
    assert [single(row.advantages) for row in batch.samples] == [-1.0, 1.0]
    assert [int(row.token_ids[0]) for row in batch.samples] == [0, 20]
    assert stats.masked == 1
    assert stats.to_json()["reward"] == 2.0


def test_the_best_samples_are_marked_only_for_the_term_that_imitates_them():
    items = [collected(0, [(OK, 1.0), (INVALID, 9.0), (OK, 3.0), (OK, 3.0)]), collected(1, [(OK, -1.0), (OK, -2.0)])]
    marked, plain = (build(0, items, AlgorithmSpec(nll=nll))[0] for nll in (0.1, 0.0))
    assert [row.marks.best for row in marked.samples] == [False, True, True, False, False]
    assert marked.totals == (15, 6)
    assert plain.totals == (15, 0)


def test_samples_that_were_cut_off_are_marked_only_for_the_critic_that_goes_on_from_them():
    samples = [sample(0, 0), sample(0, 1, finish=LENGTH), sample(0, 2)]
    items = [collected(0, [(OK, 1.0), (OK, 0.0), (OK, 0.0)], samples)]
    bootstrap, keep = (build(0, items, AlgorithmSpec(name="ppo", truncated=truncated))[0] for truncated in ("bootstrap", "keep"))
    assert [tuple(row.marks) for row in bootstrap.samples] == [(False, False), (False, True), (False, False)]
    assert [row.advantages.tolist() for row in bootstrap.samples] == [row.advantages.tolist() for row in keep.samples]
    assert all(row.marks is UNMARKED for row in keep.samples)


def test_filtered_and_dropped_groups_give_statistics_and_no_rows():
    items = [
        collected(0, [(OK, 2.0), (OK, 2.0)], verdict=Verdict.VERDICT_FILTERED),
        collected(1, [(OK, 0.0), (OK, 4.0)], verdict=Verdict.VERDICT_DROPPED),
        logged(LogEntry(index=2, verdict=Verdict.VERDICT_DROPPED)),
    ]
    batch, stats = build(3, items)
    assert not batch.has_weight
    assert (stats.filtered, stats.dropped) == (1, 2)
    assert stats.rewards == [2.0, 2.0], "a dropped group is not charted as if it had been trained"


def test_staleness_is_the_step_minus_the_oldest_trainable_version():
    mixed = sample(0, 1, length=4)
    del mixed.spans[:]
    mixed.spans.extend(
        [Span(start=0, end=1, version=7, trainable=True), Span(start=1, end=3, version=1), Span(start=3, end=4, version=4, trainable=True)]
    )
    items = [collected(0, [(OK, 0.0), (OK, 1.0)], samples=[sample(0, 0, version=8), mixed])]
    batch, stats = build(8, items)
    assert stats.staleness == [0, 4]
    np.testing.assert_array_equal(batch.samples[1].trainable, [True, False, False, True])
    shown = stats.to_json()
    assert (shown["staleness_mean"], shown["staleness_max"]) == (2.0, 4)


def test_given_responses_are_not_stale():
    _, stats = build(8, [collected(0, [(OK, 0.0), (OK, 1.0)])], sampled=False, scored=False)
    assert (stats.lengths, stats.staleness) == ([3, 3], [])
    assert "staleness_mean" not in stats.to_json()


def test_truncated_samples_are_masked_only_when_the_spec_says_so():
    samples = [sample(0, 0), sample(0, 1, finish=LENGTH, length=9), sample(0, 2)]
    item = collected(0, [(OK, 0.0), (OK, 1.0), (OK, 2.0)], samples=samples)
    kept, stats = build(0, [item], AlgorithmSpec(truncated="keep"))
    masked, _ = build(0, [item], AlgorithmSpec(truncated="mask"))
    assert (len(kept.samples), len(masked.samples)) == (3, 2)
    assert stats.to_json()["truncated"] == pytest.approx(1 / 3)
    assert stats.to_json()["response_length"] == 5.0


def test_reference_logprobs_go_with_their_samples():
    references = [np.full(3, -float(n), "<f4").tobytes() for n in range(3)]
    item = collected(0, [(OK, 0.0), (INVALID, 0.0), (OK, 1.0)], reference_logprobs=references)
    batch, _ = build(0, [item], AlgorithmSpec(kl=0.1))
    assert [float(row.reference_logprobs[0]) for row in batch.samples] == [0.0, -2.0]
    without, _ = build(0, [collected(0, [(OK, 0.0), (OK, 1.0)])])
    assert [row.reference_logprobs for row in without.samples] == [None, None]


def test_what_a_teacher_says_is_in_the_advantages_and_in_the_step_no_reward():
    teachers = [np.array(row, "<f4").tobytes() for row in ([-1.0, -0.5, -0.25], [-1.5, -2.0, -1.0])]
    entry = collected(0, [], samples=[sample(0, 0), sample(0, 1)], teacher_logprobs=teachers)
    batch, stats = build(8, [entry], AlgorithmSpec(name="opd"), teacher_weight=1.0, scored=False)
    assert [row.advantages.tolist() for row in batch.samples] == [[-0.5, 0.0, 0.25], [0.0, -0.5, 0.5]]
    assert [row.teacher_logprobs.tolist() for row in batch.samples] == [[-1.0, -0.5, -0.25], [-1.5, -2.0, -1.0]]
    assert batch.mean_kl("teacher_logprobs") == pytest.approx(0.25 / 6)
    assert "reward" not in stats.to_json()
    assert stats.to_json()["staleness_mean"] == 3.0
    beside, _ = build(
        0, [collected(0, [(OK, 1.0), (OK, 3.0)], teacher_logprobs=teachers)], AlgorithmSpec(name="rloo", kl=0.0), teacher_weight=2.0
    )
    assert [row.advantages.tolist() for row in beside.samples] == [[-3.0, -2.0, -1.5], [2.0, 1.0, 3.0]]
    with pytest.raises(ValueError, match="of the teacher, which its run needs"):
        build(0, [collected(0, [(OK, 1.0), (OK, 3.0)])], AlgorithmSpec(name="rloo", kl=0.0), teacher_weight=2.0)


def test_the_rows_of_a_teacher_go_with_their_samples():
    teachers = [np.zeros(3, "<f4").tobytes(), b"", np.ones(3, "<f4").tobytes()]
    rows = [(np.arange(6, dtype="<i4") + 10 * n, np.arange(9, dtype="<f4") - 10 * n) for n in range(3)]
    given = [TeacherRows(ids=ids.tobytes(), logprobs=logprobs.tobytes()) for ids, logprobs in rows]
    given[1] = TeacherRows()
    samples = [sample(0, 0), sample(0, 1, length=0), sample(0, 2)]
    entry = collected(0, [], samples=samples, teacher_logprobs=teachers, teacher_rows=given)
    batch, _ = build(0, [entry], AlgorithmSpec(name="opd"), teacher_weight=1.0, scored=False)
    assert len(batch.samples) == 2
    for row, (ids, logprobs) in zip(batch.samples, (rows[0], rows[2]), strict=True):
        np.testing.assert_array_equal(row.teacher_rows[0], ids.reshape(3, 2))
        np.testing.assert_array_equal(row.teacher_rows[1], logprobs.reshape(3, 3))
    given[0].logprobs = given[0].logprobs[4:]
    entry = collected(0, [], samples=samples, teacher_logprobs=teachers, teacher_rows=given)
    with pytest.raises(ValueError, match="do not have one element for each token"):
        build(0, [entry], AlgorithmSpec(name="opd"), teacher_weight=1.0, scored=False)


def test_the_rows_of_the_version_that_sampled_go_with_their_samples():
    rows = [(np.arange(6, dtype="<i4") + 10 * n, np.arange(9, dtype="<f4") - 10 * n) for n in range(2)]
    given = [TeacherRows(ids=ids.tobytes(), logprobs=logprobs.tobytes()) for ids, logprobs in rows]
    batch, _ = build(0, [collected(0, [(OK, 1.0), (OK, 3.0)], behaviour_rows=given)], AlgorithmSpec(name="score_centering"))
    for row, (ids, logprobs) in zip(batch.samples, rows, strict=True):
        np.testing.assert_array_equal(row.behaviour_rows[0], ids.reshape(3, 2))
        np.testing.assert_array_equal(row.behaviour_rows[1], logprobs.reshape(3, 3))
        assert row.teacher_rows is None


def test_statistics_of_nothing_are_numbers_and_json():
    _, stats = build(0, [])
    shown = json.loads(json.dumps(stats.to_json(), allow_nan=False))
    assert shown["reward"] == shown["reward_std"] == shown["staleness_mean"] == 0.0


def test_components_are_means_over_the_samples_that_have_them():
    item = collected(0, [(OK, 0.0), (OK, 1.0)])
    for reward in item.entry.rewards:
        reward.components["digits"] = reward.reward
    item.entry.rewards[0].components["exact"] = 1.0
    _, stats = build(0, [item])
    assert stats.to_json()["components"] == {"digits": 0.5, "exact": 1.0}


REFERENCES = [np.array(row, "<f4").tobytes() for row in ([-1.0, -0.5, -0.25], [-1.5, -2.0, -1.0])]
"""Samples 0 and 1 were sampled at -0.5 and -1.5: k1 is .5, 0, -.25 and 0, .5, -.5."""


def test_a_kl_in_the_reward_is_in_the_advantages_and_not_in_the_rewards_reported():
    item = collected(0, [(OK, 1.0), (OK, 3.0)], reference_logprobs=REFERENCES)
    by_sample, stats = build(0, [item], AlgorithmSpec(name="rloo", kl=2.0))
    assert [single(row.advantages) for row in by_sample.samples] == [-2.5, 2.5]
    by_token, _ = build(0, [item], AlgorithmSpec(name="reinforce_pp", kl=2.0))
    assert [row.advantages.tolist() for row in by_token.samples] == [[0.5, 1.5, 1.5], [3.0, 3.0, 4.0]]
    assert by_token.mean_kl("reference_logprobs") == pytest.approx(0.25 / 6)
    assert (stats.rewards, stats.to_json()["reward"]) == ([3.0, 1.0], 2.0)


def test_a_greedy_sample_is_the_baseline_and_neither_trained_nor_counted_among_the_rewards():
    item = collected(0, [(OK, 1.0), (OK, 3.0), (OK, 2.0)])
    batch, stats = build(0, [item], AlgorithmSpec(name="remax"))
    assert [single(row.advantages) for row in batch.samples] == [-1.0, 1.0]
    assert (sorted(stats.rewards), stats.masked, len(stats.lengths)) == ([1.0, 3.0], 0, 3)
    masked = collected(0, [(OK, 1.0), (INVALID, 0.0), (OK, 2.0)])
    batch, stats = build(0, [masked], AlgorithmSpec(name="remax"))
    assert ([single(row.advantages) for row in batch.samples], stats.rewards, stats.masked) == ([-1.0], [1.0], 1)


def test_the_mean_kl_leaves_tokens_out_that_the_policy_did_not_choose():
    mixed = sample(0, 0)
    del mixed.spans[:]
    mixed.spans.extend([Span(start=0, end=1, trainable=True), Span(start=1, end=2), Span(start=2, end=3, trainable=True)])
    references = [np.array([-1.0, np.nan, -1.5], "<f4").tobytes()]
    batch, _ = build(0, [collected(0, [(OK, 1.0)], [mixed], reference_logprobs=references)], AlgorithmSpec(name="reinforce_pp"))
    assert batch.mean_kl("reference_logprobs") == 0.75
    assert build(0, [])[0].mean_kl("reference_logprobs") == 0.0
