"""Threads that compute micro-batches side by side add up what one thread would."""

import os
import random
import sys
import threading
import time

import pytest
import torch

from gradbus_trainer.learners.data_parallel import DataParallelThreads, accumulate_in_turn
from gradbus_trainer.learners.gradient_step import GradientStep
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch

TRAINERS = {"float32": {}, "bf16": {"dtype": "bf16"}, "checkpointing": {"gradient_checkpointing": True}, "adapters": {"lora": {"rank": 2}}}


@pytest.fixture(params=TRAINERS.values(), ids=TRAINERS)
def make_learner(request, model_folder, make_spec):
    def make(threads=2):
        trainer = {"threads": threads, "learning_rate": 1e-2, "weight_decay": 0.1, "max_grad_norm": 1.0, **request.param}
        return TorchLearner(model_folder, make_spec(algorithm={"entropy": 0.01}, trainer=trainer))

    return make


@pytest.fixture
def make_step(make_batch):
    """Six groups."""
    return lambda step: Batch(step, [*make_batch(seed=2 * step).samples, *make_batch(seed=2 * step + 1).samples])


def trained(learner, batches):
    metrics = [learner.train(batch) for batch in batches]
    return metrics, {name: tensor.clone() for name, tensor in (*learner.weights().items(), *learner.optimizer_tensors().items())}


def test_bits_are_those_of_one_thread_that_computes_the_same_micro_batches(make_learner, make_step, monkeypatch):
    side_by_side, in_turn = make_learner(), make_learner()
    monkeypatch.setattr(in_turn, "_accumulate", accumulate_in_turn)
    batches = [make_step(step) for step in range(3)]
    assert len(list(side_by_side._micro_batches(batches[0]))) == 6
    (found, tensors), (expected, same) = trained(side_by_side, batches), trained(in_turn, batches)
    assert found == expected
    assert all(torch.equal(tensors[name], same[name]) for name in same)


def test_no_pace_of_the_threads_changes_a_bit(make_learner, make_step, monkeypatch):
    batches, draw = [make_step(step) for step in range(3)], random.Random(0)
    _, expected = trained(make_learner(), batches)
    uneven, loss, threads = make_learner(3), TorchLearner._loss, set()
    monkeypatch.setattr(uneven, "_portions", 8)

    def slow_now_and_then(learner, samples, tokens):
        threads.add(threading.get_ident())
        time.sleep(draw.choice([0.0, 0.0, 0.02]))
        return loss(learner, samples, tokens)

    monkeypatch.setattr(TorchLearner, "_loss", slow_now_and_then)
    _, found = trained(uneven, batches)
    assert len(threads) == 3
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_an_error_in_one_thread_ends_the_step_when_no_thread_computes_any_more(make_learner, make_step, monkeypatch):
    learner, loss, running = make_learner(), TorchLearner._loss, []

    def fail_at_the_third(learner, samples, tokens):
        running.append(threading.get_ident())
        if len(running) == 3:
            raise RuntimeError("no memory is left")
        return loss(learner, samples, tokens)

    monkeypatch.setattr(TorchLearner, "_loss", fail_at_the_third)
    with pytest.raises(RuntimeError, match="no memory is left"):
        learner.train(make_step(0))
    assert len(running) == 6
    monkeypatch.undo()
    metrics, tensors = trained(learner, [make_step(0)])
    again, expected = trained(make_learner(), [make_step(0)])
    assert metrics == again, "no gradient of the failed step is left"
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_phases_of_all_threads_are_recorded(make_learner, make_step):
    learner = make_learner()
    names = sorted(phase.name for phase in learner.train(make_step(0)).phases)
    assert names == ["backward"] * 6 + ["forward"] * 6 + ["optimise"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_its_threads_give_way_to_an_engine_and_the_process_keeps_its_priority():
    weight, seen, before = torch.nn.Parameter(torch.ones(2)), [], os.getpriority(os.PRIO_PROCESS, 0)

    class Step(GradientStep):
        def accumulate(self, tokens, forward, backward):
            seen.append(os.getpriority(os.PRIO_PROCESS, 0))
            backward(forward())

    DataParallelThreads(2, [weight], [weight]).accumulate(Step(), [(None, weight.sum)] * 4)
    assert set(seen) == {min(before + 5, 19)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_micro_batches_are_computed_at_the_same_time():
    """A thread that waited for the one before it could not meet it here."""
    meeting, weight = threading.Barrier(2, timeout=30), torch.nn.Parameter(torch.ones(2))

    class Step(GradientStep):
        def accumulate(self, tokens, forward, backward):
            backward(forward())

    def forward():
        meeting.wait()
        return (weight * weight).sum()

    DataParallelThreads(2, [weight], [weight]).accumulate(Step(), [(None, forward)] * 4)
    assert weight.grad.tolist() == [8.0, 8.0]
