"""What the command prints, whatever a model wrote."""

import json

from gradbus.cli.output import print_json


def test_no_control_character_reaches_the_terminal_and_the_value_is_the_same(capsys):
    value = {"text": "é 你 \x1b[2J \x7f \x80 \x9b31m \x9f", "line": "a\nb"}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "é 你" in printed
    assert not [letter for letter in printed if letter != "\n" and (letter < " " or "\x7f" <= letter < "\xa0")]
