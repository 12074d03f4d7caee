"""A frozen event loop is told from one that is only late."""

from hypothesis import given
from hypothesis import strategies as st

from gradbus.process.limits import LoopTurns


@given(st.lists(st.sampled_from(["turn", "look"])))
def test_a_turn_counts_wherever_it_falls_between_two_looks(events):
    turns, missed = LoopTurns(), 0
    assert turns.missed() == 0
    for before, event in zip(["look", *events], events, strict=False):
        if event == "turn":
            turns.count()
        else:
            missed = 0 if before == "turn" else missed + 1
            assert turns.missed() == missed
