"""Turns of an episode as the REST interface shows them."""

from gradbus.v1.episode_pb2 import END_REASON_ANSWERED, Episode, Turn
from gradbus_gateway.resources.episodes import episode_resource


def test_a_turn_says_at_which_text_it_ended_and_which_turn_it_goes_on_from():
    turns = [Turn(start=0, end=4, finish="stop", text="I look.", stop_text="\nObservation:"), Turn(end=3, sequence=1, after_turn=0)]
    first, second = episode_resource(Episode(turns=turns, end_reason=END_REASON_ANSWERED)).turns
    assert (first.stop_text, first.after_turn, first.sequence) == ("\nObservation:", None, 0)
    assert (second.stop_text, second.after_turn, second.sequence) == ("", 0, 1)
