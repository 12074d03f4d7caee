"""The learning rate by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.spec import TrainerSpec
from gradbus_trainer.learners.optimizer import learning_rate


def rates(total, **fields):
    trainer = TrainerSpec(learning_rate=1.0, **fields)
    return [learning_rate(step, total, trainer) for step in range(total)]


def test_warm_up_is_linear_and_starts_above_zero():
    assert rates(6, warmup_steps=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_towards_zero_at_the_end():
    assert rates(6, warmup_steps=2, lr_schedule="linear") == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25])


def test_cosine_is_half_way_in_the_middle():
    values = rates(5, warmup_steps=1, lr_schedule="cosine")
    assert values[:2] == [0.5, 1.0]
    assert values[3] == pytest.approx(0.5)


@given(st.integers(0, 50), st.integers(1, 60), st.integers(0, 30), st.sampled_from(["constant", "linear", "cosine"]))
def test_a_rate_is_never_negative_nor_above_the_peak(step, total, warmup, schedule):
    trainer = TrainerSpec(learning_rate=3e-4, warmup_steps=warmup, lr_schedule=schedule)
    assert 0.0 <= learning_rate(step, total, trainer) <= 3e-4
