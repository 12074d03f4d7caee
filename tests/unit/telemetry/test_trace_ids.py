"""Trace ids and sampling are the same in every process."""

from hypothesis import given
from hypothesis import strategies as st

from gradbus.telemetry import child_of, evaluation_trace, group_trace, is_sampled, start_trace, step_trace

runs, indexes = st.text("abc-123", min_size=1), st.integers(0, 10**9)


@given(runs, indexes, indexes)
def test_places_of_a_run_have_traces_of_their_own_and_always_the_same(run, index, other):
    def made():
        return [group_trace(run, index), evaluation_trace(run, other, index), step_trace(run, index, other), start_trace(run, index, other)]

    assert made() == made()
    assert len({trace.split("-")[1] for trace in made()}) == 4
    for trace in made():
        version, trace_id, span_id, flags = trace.split("-")
        assert (version, len(trace_id), len(span_id), flags) == ("00", 32, 16, "01")


def test_a_step_trained_again_under_another_term_is_another_trace():
    assert step_trace("run", 3, 1) != step_trace("run", 3, 2)


@given(runs, indexes, st.floats(0, 1), st.floats(0, 1))
def test_what_a_share_holds_every_larger_share_holds(run, index, one, other):
    trace = group_trace(run, index)
    assert is_sampled(trace, max(one, other)) >= is_sampled(trace, min(one, other))
    assert is_sampled(trace, 1.0)
    assert not is_sampled(trace, 0.0)


def test_a_share_is_kept_over_many_groups():
    found = sum(is_sampled(group_trace("run", index), 0.01) for index in range(20_000))
    assert 150 < found < 250


def test_a_child_is_a_new_span_of_its_parents_trace():
    parent = group_trace("run", 1)
    children = {child_of(parent) for _ in range(100)}
    assert len(children) == 100
    assert {child.split("-")[1] for child in children} == {parent.split("-")[1]}
    assert child_of("") == ""
