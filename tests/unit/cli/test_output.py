"""What the command prints, whatever a model wrote."""

import json

from gradbus.cli.inspect import _print_episode
from gradbus.cli.output import print_json


def test_no_control_character_reaches_the_terminal_and_the_value_is_the_same(capsys):
    value = {"text": "é 你 \x1b[2J \x7f \x80 \x9b31m \x9f", "line": "a\nb"}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "é 你" in printed
    assert not [letter for letter in printed if letter != "\n" and (letter < " " or "\x7f" <= letter < "\xa0")]


def test_an_episode_says_of_each_turn_how_it_ended_and_where_it_is(capsys):
    turn = {"text": "I look.", "start": 0, "end": 4, "finish": "stop", "calls": [], "messages": [], "reward": None, "sequence": 0}
    turns = [turn | {"stop_text": "\nObservation:", "after_turn": None}, turn | {"stop_text": "", "after_turn": 0, "sequence": 1}]
    played = {"turns": turns, "end_reason": "answered", "reason": ""}
    judged = {"reward": 1.0, "reward_status": "ok", "components": {}, "advantage": None, "label": None}
    _print_episode({"id": "0.0", "prompt": "p", "verdict": "train", "versions": [], "reason": "", "episode": played} | judged)
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  turn")]
    assert first.endswith(r"'I look.' (4 tokens, stopped at '\nObservation:')")
    assert second.endswith("(4 tokens, stop, sequence 2, without the thinking up to turn 1)")
