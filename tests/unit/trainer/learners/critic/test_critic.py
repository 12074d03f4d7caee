"""The critic inside the plain learner: what it learns, what it leaves alone, and that a resume changes no bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradbus.errors import ModelError, TrainingError
from gradbus_trainer.step.batch import Batch

from .conftest import same, state

KINDS = ["full", "lora", "head"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_critic_learns_to_tell_the_returns(ppo, rewarded, kind):
    learner = ppo(kind=kind, learning_rate=1e-2, warmup_steps=1000)
    told = [learner.train(rewarded(step, seed=0)).critic for step in range(60)]
    assert abs(told[0].explained_variance) < 1e-6, "the head starts at the mean reward"
    assert told[-1].explained_variance > (0.6 if kind == "full" else 0.2), "no value before the first token can tell it"
    assert told[-1].loss < told[0].loss


def test_of_samples_it_has_not_seen_it_explains_what_can_be_read_so_far_and_no_more(ppo, rewarded):
    """The first token decides the reward: the value before it knows nothing, each later one can know all."""
    learner = ppo(learning_rate=1e-2, warmup_steps=1000, trainer={"max_grad_norm": 1.0})
    marked = np.array([2], np.int32)  # one prompt, so that the first token is always at the same position
    told, limits = [], []
    for step in range(30):
        parts = [rewarded(step, seed=8 * step + part, all_trainable=True).samples for part in range(8)]
        batch = Batch(step, [replace(sample, prompt_ids=marked) for samples in parts for sample in samples])
        told.append(learner.train(batch).critic.explained_variance)
        limits.append(1.0 - len(batch.samples) / sum(batch.trainable_counts))
    assert 0.75 * np.mean(limits[-8:]) < np.mean(told[-8:]) < np.mean(limits[-8:]) + 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_up_does_not_touch_the_policy(ppo, rewarded, kind):
    learner = ppo(kind=kind, warmup_steps=2)
    before = dict(learner.weights())
    before = {name: tensor.clone() for name, tensor in before.items()}
    steps = [learner.train(rewarded(step, seed=step)) for step in range(2)]
    assert [step.noop for step in steps] == [True, True]
    assert same(before, dict(learner.weights()))
    assert not learner.train(rewarded(2, seed=2)).noop
    assert not same(before, dict(learner.weights()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("at", [1, 3], ids=["in the warm-up", "after it"])
def test_a_resume_ends_in_the_same_bits(ppo, rewarded, kind, updates, at):
    straight = ppo(kind=kind, updates=updates, warmup_steps=2)
    for step in range(5):
        if step == at:
            weights, optimizer = dict(straight.weights()), dict(straight.optimizer_tensors())
            saved = [{name: tensor.clone() for name, tensor in part.items()} for part in (weights, optimizer)]
        straight.train(rewarded(step, seed=step))
    resumed = ppo(kind=kind, updates=updates, warmup_steps=2)
    resumed.restore(at, *saved)
    for step in range(at, 5):
        resumed.train(rewarded(step, seed=step))
    assert same(state(straight), state(resumed))


def test_the_state_of_another_kind_is_refused_and_changes_nothing(ppo, rewarded):
    head, full = ppo(kind="head"), ppo(kind="full")
    head.train(rewarded())
    full.train(rewarded())
    before = state(full)
    with pytest.raises(ModelError, match="resume from the run's own checkpoint"):
        full.restore(1, dict(head.weights()), dict(head.optimizer_tensors()))
    assert same(before, state(full))


def test_a_trained_policy_without_its_critic_is_no_state(ppo, rewarded):
    trained, fresh = ppo(), ppo()
    trained.train(rewarded())
    moments = {name: tensor for name, tensor in trained.optimizer_tensors().items() if not name.startswith("critic.")}
    before = state(fresh)
    with pytest.raises(ModelError, match="no critic; resume from the run's own checkpoint"):
        fresh.restore(1, dict(trained.weights()), moments)
    assert same(before, state(fresh))
    fresh.restore(0, dict(trained.weights()), {})


def test_a_release_and_a_resume_change_no_bit(ppo, rewarded):
    kept, moved = ppo(), ppo()
    for learner in (kept, moved):
        learner.train(rewarded(0))
    moved.release()
    moved.resume()
    for learner in (kept, moved):
        learner.train(rewarded(1, seed=1))
    assert same(state(kept), state(moved))


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_change_the_gradients_by_rounding_alone(ppo, rewarded, kind):
    whole, pieces = ppo(kind=kind), ppo({"micro_batch_tokens": 12}, kind=kind)
    found = [learner.train(rewarded()) for learner in (whole, pieces)]
    assert found[1].critic.loss == pytest.approx(found[0].critic.loss, rel=1e-5)
    assert found[1].critic.grad_norm == pytest.approx(found[0].critic.grad_norm, rel=1e-4)
    assert found[1].grad_norm == pytest.approx(found[0].grad_norm, rel=1e-4)


def test_a_head_does_not_move_the_policy_it_reads(ppo, rewarded):
    learner = ppo(kind="head", warmup_steps=5)
    learner.train(rewarded(0))
    critic = learner._critic
    assert critic._head.weight.abs().max() > 0.0
    critic.estimate(rewarded(1, seed=1))
    assert critic._head.weight.grad.abs().max() > 0.0
    assert all(parameter.grad is None for parameter in learner._model.parameters())


def written_out_advantages(values, reward, lam, gamma):
    advantages, later, following = [], 0.0, 0.0
    for t in reversed(range(len(values))):
        own = reward if t == len(values) - 1 else 0.0
        later = own + gamma * following - values[t] + gamma * lam * later
        following = values[t]
        advantages.insert(0, later)
    return advantages


class WrittenOutHead:
    """A value head in float64 on transformers' hidden states, one sample after another."""

    def __init__(self, folder, trainer):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        self.trainer, self.settings = trainer, trainer.critic
        self.weight, self.bias = (torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in (self.model.config.hidden_size, 1))
        self.optimizer = torch.optim.AdamW([self.weight, self.bias], self.settings.learning_rate, trainer.betas, weight_decay=0.0)
        self.steps = 0

    @torch.no_grad()
    def hidden(self, sample):
        ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.token_ids])[None].astype(np.int64))
        before = self.model.model(ids).last_hidden_state[0, len(sample.prompt_ids) - 1 : -1]
        return before[torch.from_numpy(sample.trainable.copy())]

    def values(self, hidden):
        return [rows @ self.weight + self.bias for rows in hidden]

    def train(self, batch):
        """Returns the advantages before the updates."""
        rewards = [float(sample.advantages[0]) for sample in batch.samples]
        if not self.steps:
            self.bias.data.fill_(sum(rewards) / len(rewards))
        self.steps += 1
        hidden, settings = [self.hidden(sample) for sample in batch.samples], self.settings
        old = [values.tolist() for values in self.values(hidden)]

        def estimated(lam):
            return [written_out_advantages(values, reward, lam, settings.gamma) for values, reward in zip(old, rewards, strict=True)]

        targets = torch.tensor(
            [a + v for row, values in zip(estimated(settings.value_lambda), old, strict=True) for a, v in zip(row, values, strict=True)]
        )
        first = torch.tensor([v for values in old for v in values], dtype=torch.float64)
        for update in range(settings.updates):
            found = torch.cat(self.values(hidden))
            error = (found - targets) ** 2
            if update:
                error = torch.maximum(error, (first + (found - first).clamp(-settings.value_clip, settings.value_clip) - targets) ** 2)
            self.optimizer.zero_grad()
            (error.mean() / 2).backward()
            torch.nn.utils.clip_grad_norm_([self.weight, self.bias], self.trainer.max_grad_norm)
            self.optimizer.step()
        return estimated(settings.policy_lambda)


def test_a_critic_is_what_its_formulas_say_in_float64(ppo, rewarded, model_folder, make_spec):
    fields = {
        "kind": "head",
        "learning_rate": 0.02,
        "updates": 3,
        "value_clip": 0.01,
        "value_lambda": 0.7,
        "policy_lambda": 0.9,
        "gamma": 0.95,
    }
    trainer = {"max_grad_norm": 0.3, "micro_batch_tokens": 16}
    learner = ppo(trainer, {"whiten": "none"}, warmup_steps=9, **fields)
    oracle = WrittenOutHead(model_folder, make_spec(trainer=trainer | {"critic": fields}).trainer)
    for step in range(3):
        batch = rewarded(step, seed=step)
        estimates = learner._critic.estimate(batch)
        learner._critic.forget_gradient()
        exact = oracle.train(batch)
        for sample, row in zip(estimates.batch.samples, exact, strict=True):
            assert sample.advantages[sample.trainable].tolist() == pytest.approx(row, abs=2e-4)
        learner.train(batch)
        assert learner._critic._head.weight[0].tolist() == pytest.approx(oracle.weight.tolist(), abs=2e-4)
        assert learner._critic._head.bias.tolist() == pytest.approx(oracle.bias.tolist(), abs=2e-4)
    assert oracle.weight.abs().max() > 0.01


def test_tokens_that_the_policy_did_not_choose_have_no_value_and_no_advantage(ppo, rewarded):
    learner = ppo()
    batch = rewarded(seed=4)
    assert any(not sample.trainable.all() for sample in batch.samples)
    estimates = learner._critic.estimate(batch)
    for sample, found, values in zip(batch.samples, estimates.batch.samples, estimates.values, strict=True):
        assert len(values) == sample.trainable.sum()
        assert found.trainable is sample.trainable
    trained = np.concatenate([sample.advantages[sample.trainable] for sample in estimates.batch.samples]).astype(np.float64)
    assert (trained.mean(), trained.var()) == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0, abs=1e-5))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_gradient_that_is_not_finite_leaves_policy_and_critic_as_they_were(ppo, rewarded):
    learner = ppo()
    learner.train(rewarded(0))
    before = state(learner)
    batch = rewarded(1)
    infinite = [replace(sample, advantages=np.full_like(sample.advantages, np.inf)) for sample in batch.samples]
    with pytest.raises(TrainingError, match="is not finite"):
        learner.train(Batch(1, infinite))
    assert same(before, state(learner))


def test_a_step_without_a_token_to_train_changes_nothing(ppo):
    learner = ppo()
    assert learner.train(Batch(0, [])).noop
    assert not learner.optimizer_tensors()


def test_rewards_of_single_tokens_are_differences_of_their_sums(ppo, rewarded):
    """With lambdas of 1 an advantage is the sum of the rewards from its token on, minus its value."""
    learner = ppo(algorithm={"whiten": "none"}, policy_lambda=1.0)
    random = np.random.default_rng(3)
    given = [replace(s, advantages=random.normal(size=len(s.token_ids)).astype(np.float32)) for s in rewarded(seed=4).samples]
    estimates = learner._critic.estimate(Batch(0, given))
    for sample, found, values, targets in zip(given, estimates.batch.samples, estimates.values, estimates.targets, strict=True):
        sums = sample.advantages[sample.trainable].astype(np.float64)
        assert targets == pytest.approx(sums, abs=1e-12)
        assert found.advantages[sample.trainable] == pytest.approx(sums - values, abs=1e-6)
    pieces = ppo({"micro_batch_tokens": 12}, {"whiten": "none"}, policy_lambda=1.0)._critic.estimate(Batch(0, given))
    for one, other in zip(estimates.batch.samples, pieces.batch.samples, strict=True):
        assert one.advantages == pytest.approx(other.advantages, abs=1e-5), "in micro-batches"


def test_a_kl_in_the_reward_is_no_term_of_the_loss(ppo, rewarded):
    without, found = (ppo(algorithm={"kl": kl}).train(rewarded()) for kl in (0.0, 0.5))
    assert found == without
    assert found.loss.kl == 0.0
