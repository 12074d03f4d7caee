"""A sample of several sequences, as the REST interface shows it."""

import pytest

from gradbus.formats.tokens import pack_ids, pack_logprobs
from gradbus.spec import RunSpec
from gradbus.v1.episode_pb2 import Episode, Turn
from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group, LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, SampleReward
from gradbus.v1.sample_pb2 import SPAN_KIND_POLICY, SPAN_KIND_TOOL, Fork, Sample, Span
from gradbus_gateway.resources.logged_group import LoggedGroup
from gradbus_gateway.resources.samples import held_bytes

BODY = {
    "name": "test",
    "model": {"path": "m"},
    "data": {"train": "t"},
    "reward": {"service": "grpc://scorer:1"},
    "schedule": {"steps": 10},
}


def span(start, end, version=2, kind=SPAN_KIND_POLICY):
    return Span(start=start, end=end, version=version, trainable=kind == SPAN_KIND_POLICY, kind=kind)


@pytest.fixture
def group():
    own = Sample(sample_id="4.0", n=0, token_ids=pack_ids([5, 6]), logprobs=pack_logprobs([-1.0, -2.0]), spans=[span(0, 2)])
    parts = [span(0, 2, 1), span(2, 3, 1, SPAN_KIND_TOOL)]
    fork = Fork(prompt_ids=pack_ids([7, 5]), token_ids=pack_ids([8, 9, 10]), logprobs=pack_logprobs([-3.0, -4.0, 0.0]), spans=parts)
    own.forks.append(fork)
    own.episode.CopyFrom(Episode(turns=[Turn(start=0, end=2), Turn(start=0, end=2, sequence=1)]))
    alone = Sample(sample_id="4.1", n=1, forks=[fork])
    stored = Group(index=4, prompt_ids=pack_ids([7]), samples=[own, alone])
    rewards = [SampleReward(sample_id=f"4.{n}", status=REWARD_STATUS_OK, reward=n) for n in range(2)]
    references = [pack_logprobs(range(5)), pack_logprobs(range(3))]
    entry = LogEntry(index=4, verdict=VERDICT_TRAIN, group=stored.SerializeToString(), rewards=rewards, reference_logprobs=references)
    return LoggedGroup("1-0", entry, RunSpec.model_validate(BODY | {"algorithm": {"kl": 0.1, "normalize_std": False}}))


def test_the_baseline_of_a_group_has_a_label_and_no_advantage():
    samples = [Sample(sample_id=f"4.{n}", n=n, spans=[span(0, 1)]) for n in range(2)]
    rewards = [SampleReward(sample_id=f"4.{n}", status=REWARD_STATUS_OK, reward=2.0 - n) for n in range(2)]
    entry = LogEntry(index=4, verdict=VERDICT_TRAIN, group=Group(index=4, samples=samples).SerializeToString(), rewards=rewards)
    body = BODY | {"algorithm": {"name": "remax"}, "rollout": {"group_size": 2}}
    found = [LoggedGroup("1-0", entry, RunSpec.model_validate(body)).sample(n, with_tokens=False) for n in range(2)]
    assert [(sample.label, sample.advantage) for sample in found] == [("", 1.0), ("greedy", None)]


def test_the_tokens_of_each_sequence_are_shown_apart(group):
    found = group.sample(0, with_tokens=True)
    assert (found.token_count, found.tokens.prompt_ids, found.tokens.ids, found.tokens.reference_logprobs) == (5, [7], [5, 6], [0.0, 1.0])
    (fork,) = found.tokens.forks
    assert (fork.prompt_ids, fork.ids) == ([7, 5], [8, 9, 10])
    assert (fork.logprobs, fork.reference_logprobs, fork.teacher_logprobs) == ([-3.0, -4.0, 0.0], [2.0, 3.0, 4.0], [])
    assert [(part.sequence, part.start, part.end, part.version, part.author) for part in found.versions] == [
        (0, 0, 2, 2, "policy"),
        (1, 0, 2, 1, "policy"),
        (1, 2, 3, 1, "tool"),
    ]
    assert [turn.sequence for turn in found.episode.turns] == [0, 1]
    assert held_bytes(found) > held_bytes(group.sample(0, with_tokens=False)) + 8 * 100 - 1


def test_a_sample_of_forks_alone_has_no_token_of_its_own(group):
    found = group.sample(1, with_tokens=True)
    assert (found.token_count, found.tokens.ids, len(found.tokens.forks), found.advantage) == (3, [], 1, 0.5)
    assert {part.sequence for part in found.versions} == {1}
