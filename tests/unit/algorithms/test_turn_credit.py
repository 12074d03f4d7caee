"""Advantages of turns: exact on a task that can be enumerated, and those of episodes where rewards come at the end."""

import math
from itertools import product

import numpy as np
import pytest

from gradbus.algorithms import Algorithm, algorithm_of, need_faults
from gradbus.formats.tokens import pack_ids
from gradbus.spec import AlgorithmSpec, parse_spec
from gradbus.v1.episode_pb2 import Episode, Turn
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward
from gradbus.v1.sample_pb2 import Fork, Sample

EXACT = {"normalize_std": False, "filter": "none"}


def episode(n, *rewards, tokens=2):
    """A turn for each reward, of `tokens` tokens, the last of which is the environment's answer."""
    turns = [Turn(start=at * tokens, end=at * tokens + tokens - 1, reward=reward) for at, reward in enumerate(rewards)]
    return Sample(sample_id=f"0.{n}", n=n, token_ids=pack_ids(range(len(rewards) * tokens)), episode=Episode(turns=turns))


def judge(samples, totals=None, invalid=(), credits_turns=True, **fields):
    """The group's advantages, and those of each token; a sample's reward is the sum of its turns' unless `totals` says another."""
    algorithm = Algorithm(AlgorithmSpec(**fields), 64, credits_turns=credits_turns)
    totals = totals or [math.fsum(turn.reward or 0.0 for turn in sample.episode.turns) for sample in samples]
    statuses = [REWARD_STATUS_INVALID if sample.n in invalid else REWARD_STATUS_OK for sample in samples]
    rewards = {
        s.sample_id: SampleReward(sample_id=s.sample_id, status=t, reward=r) for s, t, r in zip(samples, statuses, totals, strict=True)
    }
    group = algorithm.group_advantages(samples, rewards)
    lengths = [sum(len(part.token_ids) for part in (sample, *sample.forks)) // 4 for sample in samples]
    return group, [list(row) for row in algorithm.token_advantages(group, lengths)]


def test_a_turn_that_goes_on_in_another_sequence_is_the_next_of_its_conversation():
    """As a template without old thinking has it: the advantages are those of one sequence."""
    rewards = [(1.0, 2.0, 4.0), (3.0, 0.5, 0.25)]
    whole = [episode(n, *given) for n, given in enumerate(rewards)]
    divided = [Sample(sample_id=f"0.{n}", n=n, token_ids=pack_ids([0, 0])) for n in range(2)]
    for sample, given in zip(divided, rewards, strict=True):
        sample.episode.turns.extend(Turn(start=0, end=1, reward=reward, sequence=at) for at, reward in enumerate(given))
        sample.forks.extend(Fork(token_ids=pack_ids([0, 0])) for _ in given[1:])
        for at, turn in enumerate(sample.episode.turns[1:]):
            turn.after_turn = at
    assert judge(divided, **EXACT)[1] == judge(whole, **EXACT)[1]
    for sample in divided:
        for turn in sample.episode.turns[1:]:
            turn.ClearField("after_turn")
    assert judge(divided, **EXACT)[1] != judge(whole, **EXACT)[1], "conversations beside each other have no order"


class StopOrGo:
    """Three states in a row. To go pays the state's reward and leads to the next one, to stop pays and ends; so does the last state."""

    GO, STOP = (1.0, -2.0, 3.0), (0.25, 0.5, -1.0)
    CHANCES = np.array([0.7, 0.4, 0.6])
    """Of going on in each state: the sigmoid of its parameter."""

    @classmethod
    def episodes(cls):
        """Of each episode that can happen: its chance, the rewards of its turns, and d log pi / d parameter by turn `[T, 3]`."""
        for going in range(4):
            turns = min(going + 1, 3)
            went = [at < going for at in range(turns)]
            chance = math.prod(cls.CHANCES[at] if goes else 1 - cls.CHANCES[at] for at, goes in enumerate(went))
            rewards = [cls.GO[at] if goes else cls.STOP[at] for at, goes in enumerate(went)]
            slopes = np.array([[(goes - cls.CHANCES[at]) * (at == of) for of in range(3)] for at, goes in enumerate(went)])
            yield chance, rewards, slopes

    @classmethod
    def gradient(cls):
        """That of the expected return."""
        return sum(chance * sum(rewards) * slopes.sum(0) for chance, rewards, slopes in cls.episodes())

    @classmethod
    def expected(cls, size, advantages):
        """The expected estimate from groups of `size` episodes, over all groups there can be."""
        total = np.zeros(3)
        for group in product(list(cls.episodes()), repeat=size):
            parts = advantages([rewards for _, rewards, _ in group])
            estimate = sum((np.array(part)[:, None] * slopes).sum(0) for part, (_, _, slopes) in zip(parts, group, strict=True))
            total += math.prod(chance for chance, _, _ in group) * estimate / size
        return total


def of_turns(**fields):
    def advantages(rewards):
        group, _ = judge([episode(n, *row) for n, row in enumerate(rewards)], **EXACT, **fields)
        return [[part.advantage for part in row] for row in group.by_turn]

    return advantages


def centred_by_index(rewards):
    """The variant that is not taken: rewards of each turn are centred among the episodes that have it, and then added up."""
    centred = [[row[at] - np.mean([other[at] for other in rewards if len(other) > at]) for at in range(len(row))] for row in rewards]
    return [np.cumsum(row[::-1])[::-1] for row in centred]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce"])
def test_the_expected_gradient_is_the_exact_one(size, advantage):
    """The mean that includes the episode itself only scales it by (n - 1) / n, whatever the episodes do."""
    assert sum(chance for chance, _, _ in StopOrGo.episodes()) == pytest.approx(1.0)
    scale = (size - 1) / size if advantage == "grpo" else 1.0
    exact = StopOrGo.gradient()
    assert StopOrGo.expected(size, of_turns(advantage=advantage)) == pytest.approx(scale * exact, abs=1e-12)
    by_index = StopOrGo.expected(size, centred_by_index)
    assert np.abs(by_index - exact).max() > 0.1, "a turn that others do not reach would be paid or fined for being reached"
    assert np.abs(by_index * size / (size - 1) - exact).max() > 0.1


def test_turn_credit_has_less_variance_than_that_of_episodes():
    def spread(credits_turns):
        estimates = []
        for group in product(list(StopOrGo.episodes()), repeat=3):
            samples = [episode(n, *rewards, tokens=1) for n, (_, rewards, _) in enumerate(group)]
            _, rows = judge(samples, credits_turns=credits_turns, advantage="rloo", **EXACT)
            found = sum((np.array(row)[:, None] * slopes).sum(0) for row, (_, _, slopes) in zip(rows, group, strict=True)) / 3
            estimates.append((math.prod(chance for chance, _, _ in group), found))
        mean = sum(chance * found for chance, found in estimates)
        return mean, sum(chance * ((found - mean) ** 2).sum() for chance, found in estimates)

    (of_turns_, smaller), (of_episodes, larger) = spread(True), spread(False)
    assert of_turns_ == pytest.approx(of_episodes, abs=1e-6)
    assert smaller < larger


@pytest.mark.parametrize(
    ("advantage", "normalize_std"),
    [*product(["grpo", "rloo"], [True, False]), ("reinforce", False), ("gae", False)],  # a spec refuses the others
)
@pytest.mark.parametrize("scorer", [0.0, 0.3])
def test_rewards_at_the_end_have_the_bits_of_episodes(advantage, normalize_std, scorer):
    rng = np.random.default_rng(1)
    for _ in range(20):
        samples = [episode(n, *[0.0] * rng.integers(5), rng.normal()) for n in range(int(rng.integers(2, 9)))]
        totals = [sample.episode.turns[-1].reward + scorer for sample in samples]
        fields = {"advantage": advantage, "normalize_std": normalize_std, "filter": "none"}
        by_turn, by_episode = (judge(samples, totals, credits_turns=credits_turns, **fields) for credits_turns in (True, False))
        assert by_turn[1] == by_episode[1]
        assert (by_turn[0].valid, by_turn[0].advantages, by_turn[0].reason) == (by_episode[0].valid, by_episode[0].advantages, "")


def test_an_episode_that_ended_keeps_the_return_of_its_last_turn():
    """Returns (6, 5, 3) and (4, 2); a scorer's 1 is one of the last turn. At the third turn the other's is still 2."""
    group, rows = judge([episode(0, 1.0, 2.0, 2.0), episode(1, 2.0, 2.0)], totals=[6.0, 4.0], advantage="grpo", **EXACT)
    assert [[part.advantage for part in row] for row in group.by_turn] == [[1.0, 1.5, 0.5], [-1.0, -1.5]]
    assert rows == [[1.0, 1.0, 1.5, 1.5, 0.5, 0.5], [-1.0, -1.0, -1.5, -1.5]], "what stands between two turns counts to the first"


def test_all_turns_have_the_scale_of_their_group():
    samples = [episode(0, 1.0, 2.0), episode(1, 2.0, 2.0), episode(2, 0.0, 1.0)]
    exact, scaled = (judge(samples, normalize_std=normalize, filter="none")[0] for normalize in (False, True))
    for one, other in zip(exact.by_turn, scaled.by_turn, strict=True):
        assert [part.advantage for part in other] == pytest.approx([part.advantage / (exact.std + 1e-4) for part in one])


def test_a_masked_episode_has_no_part():
    samples = [episode(0, 1.0, 2.0), episode(1, 2.0, 2.0), episode(2, 9.0, 9.0)]
    group, rows = judge(samples, invalid={2}, **EXACT)
    assert group.by_turn[:2] == judge(samples[:2], **EXACT)[0].by_turn
    assert group.by_turn[2] == ()
    assert set(rows[2]) == {0.0}


def test_equal_returns_are_filtered_only_if_their_turns_are_equal_or_their_deviation_is_the_scale():
    samples = [episode(0, 1.0, 2.0), episode(1, 2.0, 1.0)]
    assert judge(samples, normalize_std=False)[0].reason == ""
    assert "equal" in judge(samples, normalize_std=True)[0].reason
    assert "equal" in judge([episode(0, 1.0, 2.0), episode(1, 1.0, 2.0)], normalize_std=False)[0].reason


def test_a_forks_first_turn_has_none_before_it_and_its_episode_is_compared_by_its_first_sequence():
    """Returns of the own sequence (7, 6), of the fork (7, 3); the other's (4, 1). Tokens of the fork follow those of the sample."""
    forked = episode(0, 1.0, 2.0)
    forked.forks.append(Fork(token_ids=pack_ids(range(3))))
    forked.episode.turns.extend([Turn(start=0, end=1, reward=4.0, sequence=1), Turn(start=2, end=3, sequence=1)])
    group, rows = judge([forked, episode(1, 3.0, 1.0)], advantage="grpo", **EXACT)
    assert [[part.advantage for part in row] for row in group.by_turn] == [[1.5, 2.5, 1.5, 1.0], [-1.5, -2.5]]
    assert rows[0] == [1.5, 1.5, 2.5, 2.5, 1.5, 1.5, 1.0]


def test_a_critics_trajectory_has_each_reward_at_the_end_of_its_turn():
    """Returns from each token on, whose differences a critic takes: 2 and 1 of the own turns, 4 of the fork's first, .5 of the scorer."""
    forked = episode(0, 2.0, 1.0)
    forked.forks.append(Fork(token_ids=pack_ids(range(3))))
    forked.episode.turns.extend([Turn(start=0, end=1, reward=4.0, sequence=1), Turn(start=2, end=3, sequence=1)])
    group, [row] = judge([forked], totals=[7.5], advantage="gae", **EXACT)
    assert [part.start for part in group.by_turn[0]] == [0, 2, 4, 6]
    assert row == [7.5, 7.5, 5.5, 5.5, 4.5, 4.5, 0.5]
    assert (-np.diff(row, append=0.0)).tolist() == [0.0, 2.0, 0.0, 1.0, 0.0, 4.0, 0.5]
    later = forked.episode.turns[2]
    later.after_turn = 0
    assert judge([forked], totals=[7.5], advantage="gae", **EXACT)[1] == [row], (
        "a trajectory has one order, whichever turn a fork goes on from"
    )


def run(credit="turn", **algorithm):
    body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 100}, "algorithm": algorithm}
    return parse_spec(body | {"environment": {"service": "http://world:1", "credit": credit}})


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "dr_grpo", "reinforce_pp_baseline", "ppo", "sao"])
def test_a_run_by_returns_less_their_mean_or_a_value_may_credit_turns(name):
    assert list(need_faults(run(name=name))) == []
    algorithm = algorithm_of(run(name=name))
    assert (algorithm.credits_turns, algorithm.has_sample_advantages) == (True, False)
    assert not algorithm_of(run("episode", name=name)).credits_turns


@pytest.mark.parametrize(
    ("algorithm", "cause"),
    [
        ({"name": "ppo", "kl": 0.1}, "one of tokens"),
        ({"name": "remax"}, "remax"),
        ({"name": "opo"}, "opo"),
        ({"name": "maxrl"}, "maxrl"),
        ({"name": "pass_k"}, "pass_k"),
        ({"name": "gdpo"}, "gdpo"),
        ({"name": "rloo"}, "one of tokens"),
        ({"name": "reinforce_pp"}, "one of tokens"),
    ],
)
def test_others_are_refused_with_the_reason(algorithm, cause):
    [fault] = [fault for fault in need_faults(run(**algorithm)) if fault.path == "environment.credit"]
    assert cause in str(fault)
    assert list(need_faults(run("episode", **algorithm))) == []
