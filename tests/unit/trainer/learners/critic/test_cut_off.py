"""Values after answers that were cut off: exact numbers, where they are read, and what they change."""

from dataclasses import replace

import numpy as np
import pytest

from gradbus.algorithms import SampleMarks
from gradbus_kernels.models.packing import OWN_CHOICE
from gradbus_trainer.learners.critic.cut_off import continued
from gradbus_trainer.learners.critic.gae import generalized_advantages
from gradbus_trainer.learners.critic.trajectories import Trajectories
from gradbus_trainer.step.batch import Batch, TrainSample

from .conftest import same, state

KINDS = ["full", "lora", "head"]


def cut_off(batch, every=2):
    """The batch, of which every second sample was cut off."""
    return Batch(batch.step, [replace(s, marks=SampleMarks(cut_off=n % every == 0)) for n, s in enumerate(batch.samples)])


def test_three_tokens_of_an_answer_that_was_cut_off():
    """V (.5, .6, .7), no reward, and .8 after the end."""
    one = TrainSample(*(np.zeros(3, kind) for kind in (np.int32, np.int32, np.float32)), np.ones(3, np.bool_), np.zeros(3, np.float32))
    values = np.array([0.5, 0.6, 0.7])
    [advantages] = generalized_advantages([values], Trajectories.of([one], [values], [0.8]).rewards, [0.95])
    assert advantages.tolist() == pytest.approx([0.28525, 0.195, 0.1], abs=1e-12)
    [ended] = generalized_advantages([values], Trajectories.of([one], [values], [0.0]).rewards, [0.95])
    assert ended.tolist()[-1] == pytest.approx(-0.7, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [8192, 12])
def test_the_value_after_a_cut_is_read_from_the_last_tokens_state_and_no_other_value_changes(ppo, rewarded, kind, budget):
    """With lambdas of 1 an advantage is gamma to the power of its distance times that value, plus the return, minus its own value."""
    fields = {"kind": kind, "policy_lambda": 1.0, "gamma": 0.9}
    learner = ppo({"micro_batch_tokens": budget}, {"whiten": "none"}, **fields)
    for step in range(2):
        learner.train(rewarded(step, seed=step))
    batch = rewarded(2, seed=4)
    kept = learner._critic.estimate(batch)
    found = learner._critic.estimate(cut_off(batch))
    assert [row.tolist() for row in found.values] == [pytest.approx(row.tolist(), abs=1e-5) for row in kept.values]
    token = np.array([7], np.int32)  # whatever follows: its value is read before it
    longer = [replace(s, token_ids=np.append(s.token_ids, token), trainable=np.append(s.trainable, True)) for s in batch.samples]
    after = [part[-1].item() for part in learner._critic._values(longer)]
    for n, (one, other) in enumerate(zip(found.batch.samples, kept.batch.samples, strict=True)):
        trained = one.trainable.nonzero()[0]
        power = 0.9 ** np.arange(len(trained), 0, -1)
        expected = other.advantages[trained] + (power * after[n] if n % 2 == 0 else 0.0)
        assert one.advantages[trained] == pytest.approx(expected, abs=1e-5)
        assert found.targets[n] == pytest.approx(kept.targets[n] + (power * after[n] if n % 2 == 0 else 0.0), abs=1e-5)


def test_a_cut_moves_the_critic_and_is_the_same_in_every_micro_batch(ppo, rewarded):
    whole, pieces, ended = ppo(updates=2), ppo({"micro_batch_tokens": 12}, updates=2), ppo(updates=2)
    for step in range(3):
        found = [one.train(cut_off(rewarded(step, seed=step))) for one in (whole, pieces)]
        assert found[1].critic.loss == pytest.approx(found[0].critic.loss, rel=1e-4)
        assert found[1].grad_norm == pytest.approx(found[0].grad_norm, rel=1e-3)
        other = ended.train(rewarded(step, seed=step))
    assert found[0].critic.loss != pytest.approx(other.critic.loss, rel=1e-3)
    assert not same(state(whole), state(ended))


def test_the_routes_of_a_continued_sample_leave_its_last_token_to_the_model(rewarded):
    one = rewarded().samples[0]
    routes = np.ones((len(one.prompt_ids) + len(one.token_ids), 2, 1), np.int16)
    [longer] = continued([replace(one, routes=routes, marks=SampleMarks(cut_off=True))])
    assert len(longer.routes) == len(longer.prompt_ids) + len(longer.token_ids) == len(routes) + 1
    assert (longer.routes[:-1] == 1).all()
    assert (longer.routes[-1] == OWN_CHOICE).all()
