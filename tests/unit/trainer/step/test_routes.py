"""Routes of a group, decoded for training."""

import numpy as np
import pytest

from gradbus.v1.group_pb2 import Group, RoutedExperts
from gradbus.v1.sample_pb2 import Sample
from gradbus_kernels.models.packing import OWN_CHOICE
from gradbus_trainer.step.batch import TrainSample
from gradbus_trainer.step.routes import count_routes, sample_routes

PROMPT = 4
LENGTHS = (3, 5, 1)


def drawn(tokens, experts=8, seed=0):
    """`[tokens, 2, 3]`."""
    rng = np.random.default_rng(seed)
    return np.array([[rng.permutation(experts)[:3] for _ in range(2)] for _ in range(tokens)]).reshape(-1, 2, 3)


def group(prompt, *responses, experts=8):
    dtype = "<u1" if experts <= 256 else "<u2"
    routed = RoutedExperts(layers=2, experts=experts, chosen=3, prompt=prompt.astype(dtype).tobytes())
    return Group(routed_experts=routed, samples=[Sample(routed_experts=rows.astype(dtype).tobytes()) for rows in responses])


def rows_of(message):
    return [
        TrainSample(np.zeros(PROMPT, np.int32), np.zeros(length, np.int32), *(np.zeros(length, np.float32),) * 3, None, routes)
        for length, routes in zip(LENGTHS, sample_routes(message, PROMPT, LENGTHS), strict=True)
    ]


@pytest.mark.parametrize("experts", [8, 256, 257, 1024])
def test_every_sample_has_the_prompts_routes_and_its_own(experts):
    prompt, own = drawn(PROMPT, experts), [drawn(length - 1, experts, length) for length in LENGTHS]
    rows = rows_of(group(prompt, *own, experts=experts))
    for row, routes in zip(rows, own, strict=True):
        assert (row.routes[:PROMPT] == prompt).all()
        assert (row.routes[PROMPT:-1] == routes).all()
        assert (row.routes[-1] == OWN_CHOICE).all()
    assert count_routes(rows) == (PROMPT + 2 + 4 + 0, 0)


def test_tokens_of_a_short_row_choose_and_are_counted():
    rows = rows_of(group(drawn(PROMPT), drawn(2), drawn(1), drawn(0)))
    assert (rows[1].routes[PROMPT + 1 :] == OWN_CHOICE).all()
    assert count_routes(rows) == (PROMPT + 2 + 1, 3)
    nothing = rows_of(group(drawn(0), drawn(0), drawn(0), drawn(0)))
    assert count_routes(nothing) == (0, PROMPT + 2 + 4)


def test_experts_that_are_no_choice_are_not_replayed():
    own = drawn(4)
    own[1, 1] = 0  # as a server that has lost a row gives it
    own[2, 0, 2] = 8
    row = rows_of(group(drawn(PROMPT), drawn(2), own, drawn(0)))[1]
    assert [bool((token == OWN_CHOICE).all()) for token in row.routes[PROMPT:]] == [False, True, True, False, True]


def test_a_run_without_replay_has_no_routes():
    message = Group(samples=[Sample()] * 3)
    assert sample_routes(message, PROMPT, LENGTHS) == [None] * 3
    assert count_routes(rows_of(message)) == (0, 0)


def test_content_that_is_not_whole_rows_is_refused():
    message = group(drawn(PROMPT), drawn(2), drawn(4), drawn(0))
    message.samples[1].routed_experts = bytes(5)
    with pytest.raises(ValueError, match="reshape"):
        sample_routes(message, PROMPT, LENGTHS)
