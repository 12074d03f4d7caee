"""Where tokens go when sequences are packed."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradbus_kernels.packing import pack, split_by_tokens

CPU = torch.device("cpu")
shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=12)
reuse = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def chain(batch, position):
    """The tokens that the packed token at `position` may see, itself included, read off the runs."""
    start, starts = 0, []
    for run in batch.runs:
        starts.append(start)
        start += run.rows * run.length
    place = max(index for index, first in enumerate(starts) if first <= position)
    run = batch.runs[place]
    row = (position - starts[place]) // run.length
    own = batch.input_ids[0, starts[place] + row * run.length : position + 1].tolist()
    if run.root is None:
        return own
    root = batch.runs[run.root]
    first = starts[run.root] + int(run.parents[row]) * root.length
    return batch.input_ids[0, first : first + root.length].tolist() + own


@reuse
@given(shapes)
def test_every_response_token_is_predicted_from_exactly_what_came_before_it(make_tokens, drawn):
    sequences = [make_tokens(prompt, response, prompt_seed, row) for row, (prompt, response, prompt_seed) in enumerate(drawn)]
    batch = pack(sequences, CPU)
    reads = iter(batch.selected.tolist())
    for sequence in sequences:
        history = sequence.prompt_ids.tolist()
        for token in sequence.token_ids.tolist():
            position = next(reads)
            assert chain(batch, position) == history
            assert batch.position_ids[0, position] == len(history) - 1
            history.append(token)
    assert batch.targets.tolist() == [token for sequence in sequences for token in sequence.token_ids.tolist()]


@reuse
@given(shapes)
def test_runs_hold_every_token_once_and_no_padding(make_tokens, drawn):
    sequences = [make_tokens(*shape) for shape in drawn]
    batch = pack(sequences, CPU)
    packed = batch.input_ids.shape[1]
    assert sum(run.rows * run.length for run in batch.runs) == packed == batch.position_ids.shape[1]
    assert packed <= sum(len(sequence.prompt_ids) + len(sequence.token_ids) - 1 for sequence in sequences)


def test_a_prompt_that_samples_share_is_computed_once(make_tokens):
    sequences = [make_tokens(6, 4, 0, n) for n in range(8)]
    assert pack(sequences, CPU).input_ids.shape == (1, 6 + 8 * 3)


def test_a_short_prompt_of_long_responses_is_not_shared(make_tokens):
    sequences = [make_tokens(2, 40, 0, n) for n in range(4)]
    batch = pack(sequences, CPU)
    assert [(run.rows, run.length, run.root) for run in batch.runs] == [(4, 41, None)]


@reuse
@given(shapes, st.integers(1, 40))
def test_splitting_keeps_order_and_budget(make_tokens, drawn, budget):
    sequences = [make_tokens(*shape) for shape in drawn]
    parts = list(split_by_tokens(sequences, budget))
    assert [sequence for part in parts for sequence in part] == sequences
    for part in parts:
        assert len(part) == 1 or sum(len(sequence.prompt_ids) + len(sequence.token_ids) for sequence in part) <= budget
