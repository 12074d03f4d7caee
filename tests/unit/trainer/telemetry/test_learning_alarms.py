"""Alarms of learning: runs that learn raise none, and each kind of collapse raises its own, once."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus.spec import RunSpec
from gradbus_trainer.learners.base import CriticMetrics, LossMetrics, RatioMetrics, StepMetrics
from gradbus_trainer.telemetry.learning_alarms import AlarmKind, LearningAlarms
from gradbus_trainer.telemetry.symptoms import StepRewards

HISTORIES = json.loads((Path(__file__).parent / "histories.json").read_text())
"""Runs of examples/ by their metrics: two demos, addition at 30 times its learning rate, and addition by PPO."""
GROUP, SAMPLES = 8, 256
USUAL = {"entropy": 0.4, "kl": 0.01, "grad_norm": 0.5, "logprob_diff": 0.03, "explained_variance": 0.4}
SEEDS = st.integers(0, 2**32 - 1)


def spec(**sections):
    body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    body |= {"schedule": {"steps": 10, "max_staleness": 1}, "rollout": {"group_size": GROUP}}
    body |= {"algorithm": {"name": "ppo", "kl": 0.01}, "trainer": {"learning_rate": 1e-3, "critic": {"learning_rate": 2e-3}}}
    return RunSpec.model_validate(body | sections)


def step_of(values):
    values = USUAL | values
    return StepMetrics(
        noop=bool(values.get("noop", False)),
        learning_rate=1e-3,
        grad_norm=values["grad_norm"],
        loss=LossMetrics(kl=values["kl"], entropy=values["entropy"]),
        ratio=RatioMetrics(logprob_diff=values["logprob_diff"]),
        critic=CriticMetrics(explained_variance=values["explained_variance"]),
    )


def rewards_of(values):
    mean = values.get("reward", 0.5)
    return StepRewards(mean, values.get("reward_std", math.sqrt(max(0.0, mean * (1.0 - mean)))), SAMPLES)


def raised(steps, alarms=None):
    """(step, kind) of each alarm; the steps are dictionaries of what is unusual in them."""
    alarms = alarms or LearningAlarms(spec())
    return [(at, alarm.kind) for at, values in enumerate(steps) for alarm in alarms.add(at, step_of(values), rewards_of(values))]


def rows(columns):
    """Steps from one sequence for each metric."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("addition", []), ("copy", []), ("addition_too_fast", ["off_policy", "reward_collapse"]), ("addition_ppo", ["critic_knows_nothing"])],
)
def test_real_runs(name, kinds):
    assert [kind for _, kind in raised(rows(HISTORIES[name]))] == kinds


def test_a_group_is_what_its_rewards_are_without_the_greedy_sample():
    """Twice the rewards a group are as many groups: alarms need so much evidence, by groups."""
    history = rows({"reward": [0.9] * 40 + [0.4] * 40, "reward_std": [0.49] * 80})

    def first(**sections):
        critic = {"trainer": {"learning_rate": 1e-3}} if "algorithm" in sections else {}
        alarms = LearningAlarms(spec(**critic, **sections))
        return [
            at
            for at, values in enumerate(history)
            for alarm in alarms.add(at, step_of(values), replace(rewards_of(values), samples=8))
            if alarm.kind == "reward_collapse"
        ]

    plain = {size: first(rollout={"group_size": size}) for size in (1, 2)}
    assert plain[1] != plain[2]
    assert first(algorithm={"name": "remax"}, rollout={"group_size": 2}) == plain[1]


@settings(max_examples=50)
@given(SEEDS, st.floats(0.001, 1.0), st.floats(0.001, 1.0), st.integers(50, 800))
def test_a_run_that_learns_raises_none(seed, first, last, steps):
    """Rewards by chance, from one share of right answers up to another; entropy falls with it, gradients and values are noisy."""
    rng = np.random.default_rng(seed)
    progress = 1.0 / (1.0 + np.exp(-10.0 * (np.arange(steps) / steps - rng.uniform(0.2, 0.8))))
    share = min(first, last) + abs(last - first) * progress
    # Half of the groups are decided by their prompt alone.
    whole = rng.binomial(SAMPLES // GROUP // 2, share) * GROUP
    reward = (whole + rng.binomial(SAMPLES // 2, share)) / SAMPLES
    columns = {
        "reward": reward,
        "entropy": rng.uniform(0.1, 4.0) * (1.0 - 0.7 * progress) * rng.lognormal(0.0, 0.2, steps),
        "kl": 0.3 * progress * rng.lognormal(0.0, 0.5, steps),
        "grad_norm": rng.uniform(0.01, 10.0) * rng.lognormal(0.0, 0.8, steps),
        "logprob_diff": rng.uniform(1e-6, 0.1) * rng.lognormal(0.0, 0.4, steps),
        "explained_variance": np.minimum(1.0, np.arange(steps) / 40.0) * rng.uniform(0.2, 0.9) + rng.normal(0.0, 0.03, steps),
    }
    assert raised(rows(columns)) == []


@settings(max_examples=50)
@given(SEEDS, st.floats(0.001, 1.0), st.sampled_from([GROUP, 4 * GROUP, SAMPLES]))
def test_a_reward_that_is_only_noisy_does_not_collapse(seed, share, samples):
    """Also one that is rarely given, and one of few groups."""
    rng = np.random.default_rng(seed)
    alarms = LearningAlarms(spec())
    for at in range(600):
        groups = rng.random((samples // GROUP, 1)) < share if seed % 2 else rng.random((samples // GROUP, GROUP)) < share
        found = np.broadcast_to(groups, (samples // GROUP, GROUP))
        assert alarms.add(at, step_of({}), StepRewards(float(found.mean()), float(found.std()), samples)) == []


@settings(max_examples=50)
@given(SEEDS, st.floats(0.4, 1.0), st.floats(0.0, 0.25), st.integers(10, 200))
def test_a_reward_that_falls_to_less_than_half_is_told_of_once(seed, before, kept, good):
    rng = np.random.default_rng(seed)
    share = [before] * good + [before * kept] * 80
    found = raised({"reward": rng.binomial(SAMPLES, one) / SAMPLES} for one in share)
    assert [kind for _, kind in found] == ["reward_collapse"]
    assert good <= found[0][0] <= max(good, 20) + 40


def test_a_negative_reward_has_no_half():
    assert raised({"reward": -1.0 - at / 50, "reward_std": 0.1} for at in range(100)) == []


def test_without_a_score_there_is_no_reward():
    alarms = LearningAlarms(spec())
    assert [alarm for at in range(100) for alarm in alarms.add(at, step_of({"entropy": 0.001}), None)] == []


@pytest.mark.parametrize(
    ("kind", "bad", "takes"),
    [
        ("entropy_collapse", {"entropy": 0.005}, 10),
        ("gradient_explosion", {"grad_norm": 11.0}, 3),
        ("kl_explosion", {"kl": 1.1}, 3),
        ("off_policy", {"logprob_diff": 0.6}, 10),
        ("critic_knows_nothing", {"explained_variance": 0.01}, 50),
        ("critic_diverges", {"explained_variance": -0.6}, 5),
    ],
)
class TestKinds:
    """What holds for each kind whose symptom is a value of the step; `takes` so many steps."""

    def test_is_told_of_once_while_it_lasts(self, kind, bad, takes):
        assert raised([{}] * 60 + [bad] * 300) == [(59 + takes, kind)]

    def test_is_not_told_of_if_it_passes_sooner(self, kind, bad, takes):
        assert raised(([{}] * 60 + [bad] * (takes - 1)) * 3) == []

    def test_is_told_of_again_after_the_run_has_recovered(self, kind, bad, takes):
        assert [found for _, found in raised(([{}] * 60 + [bad] * takes) * 2)] == [kind] * 2

    def test_one_good_step_is_no_recovery(self, kind, bad, takes):
        alarms = LearningAlarms(spec())
        assert len(raised([{}] * 60 + [bad] * takes + ([{}] * 2 + [bad] * takes) * 5, alarms)) == 1
        assert list(alarms.lasting) == [kind]
        raised([{}] * 3, alarms)
        assert not alarms.lasting

    def test_says_what_was_seen_and_names_settings_of_the_spec(self, kind, bad, takes):
        alarms = LearningAlarms(spec())
        raised([{}] * 60 + [bad] * takes, alarms)
        message = alarms.lasting[kind]
        assert message.startswith(f"step {59 + takes}: ")
        assert f"{next(iter(bad.values())):.2g}" in message
        named = [word.rstrip(",") for word in message.partition("; ")[2].split() if "." in word and word[0].isalpha()]
        known = spec().model_dump()
        for name in named:
            section = known
            for part in name.split("."):
                section = section[part]
        assert named

    def test_a_value_that_is_not_finite_never_becomes_usual(self, kind, bad, takes):
        unknown = dict.fromkeys(bad, math.nan)
        assert raised(([{}] * 30 + [unknown]) * 3 + [bad] * takes)[-1][1] == kind

    def test_a_step_that_changed_nothing_says_nothing_of_the_policy(self, kind, bad, takes):
        found = raised([{}] * 60 + [bad | {"noop": True}] * 300)
        assert found == ([(59 + takes, kind)] if kind.startswith("critic") else [])


def test_a_run_has_the_kinds_that_can_happen_to_it():
    policy = ["reward_collapse", "entropy_collapse", "gradient_explosion", "off_policy"]
    assert LearningAlarms(spec(algorithm={"name": "grpo"}, trainer={})).kinds == policy
    assert LearningAlarms(spec()).kinds == [*policy, "kl_explosion", "critic_diverges", "critic_knows_nothing"]


def test_a_gradient_below_its_bound_is_applied_as_it_is_and_explodes_in_no_run():
    assert raised([{"grad_norm": 0.001}] * 60 + [{"grad_norm": 0.9}] * 20) == []


def test_the_entropy_of_a_run_that_learns_or_has_solved_its_task_may_vanish():
    falls = [0.4 * 0.9**at for at in range(60)]
    rises = [{"reward": 0.3 + at / 100, "entropy": entropy} for at, entropy in enumerate(falls)]
    solved = [{"reward": 0.99, "entropy": 0.001}] * 100
    assert raised(rises + solved) == []
    stands = [{"reward": 0.5, "entropy": entropy} for entropy in falls]
    assert [kind for _, kind in raised(stands)] == ["entropy_collapse"]


def test_in_the_warm_up_nobody_expects_anything_of_the_critic():
    warm = spec(trainer={"critic": {"warmup_steps": 100}})
    found = raised([{"explained_variance": -2.0}] * 200, LearningAlarms(warm))
    assert found == [(104, "critic_diverges")]


def test_a_step_without_a_critic_neither_continues_nor_ends_its_alarm():
    alarms = LearningAlarms(spec())
    raised([{"explained_variance": -2.0}] * 4, alarms)
    assert alarms.add(4, replace(step_of({}), critic=None), rewards_of({})) == []
    assert raised([{"explained_variance": -2.0}], alarms) == [(0, "critic_diverges")]


def test_samples_of_the_newest_version_that_differ_are_a_matter_of_dtypes():
    alarms = LearningAlarms(spec(schedule={"steps": 10, "max_staleness": 0}))
    raised([{"logprob_diff": 1.0}] * 10, alarms)
    assert "weights.dtype" in alarms.lasting["off_policy"]


def test_the_page_on_operations_has_every_kind():
    page = (Path(__file__).parents[4] / "docs/operations.md").read_text()
    section = page.partition("## Alarms of learning")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+_\w+)` \|", section, re.MULTILINE)) == sorted(get_args(AlarmKind))
