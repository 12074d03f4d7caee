"""Micro-batches of samples: where they are split, and that packing keeps their content."""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradbus_kernels.models.packing import pack, split_by_tokens

CPU = torch.device("cpu")
shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=12)
reuse = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_samples_of_one_prompt_share_it(make_tokens):
    sequences = [make_tokens(30, 4, 0, n) for n in range(8)]
    batch = pack(sequences, CPU)
    assert batch.input_ids.shape == (1, 30 + 8 * 3)
    assert batch.targets.tolist() == [token for sequence in sequences for token in sequence.token_ids.tolist()]


def test_token_ids_that_may_not_be_written_are_packed_without_a_warning(make_tokens, recwarn):
    sequence = make_tokens(3, 4)
    for ids in (sequence.prompt_ids, sequence.token_ids):
        ids.flags.writeable = False
    assert pack([sequence], CPU).input_ids[0].tolist() == np.concatenate((sequence.prompt_ids, sequence.token_ids[:-1])).tolist()
    assert not recwarn


@reuse
@given(shapes, st.integers(1, 250))
def test_splitting_keeps_order_and_budget(make_tokens, drawn, budget):
    sequences = [make_tokens(10 * prompt, response, seed, row) for row, (prompt, response, seed) in enumerate(drawn)]
    parts = list(split_by_tokens(sequences, budget))
    assert [sequence for part in parts for sequence in part] == sequences
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        assert len(part) == 1 or inputs(part) <= budget
        if following:
            assert inputs([*part, following[0]]) > budget, "it would have fitted"


def inputs(part):
    """Packed tokens, and the last one of each response, which the budget counts and packing leaves out."""
    return pack(part, CPU).input_ids.shape[1] + len(part)


def test_a_group_that_fits_with_its_prompt_once_is_not_split(make_tokens):
    group = [make_tokens(2048, 512, 0, row) for row in range(8)]
    assert [len(part) for part in split_by_tokens(group, 2048 + 8 * 512)] == [8]
    assert [len(part) for part in split_by_tokens(group, 2048 + 8 * 512 - 1)] == [7, 1]
