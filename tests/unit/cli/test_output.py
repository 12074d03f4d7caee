"""What the command prints, whatever a model wrote."""

import json

from gradbus.cli import inspect
from gradbus.cli.output import print_json


def test_no_control_character_reaches_the_terminal_and_the_value_is_the_same(capsys):
    value = {"text": "é 你 \x1b[2J \x7f \x80 \x9b31m \x9f", "line": "a\nb"}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "é 你" in printed
    assert not [letter for letter in printed if letter != "\n" and (letter < " " or "\x7f" <= letter < "\xa0")]


def test_a_sample_is_shown_with_the_rest_of_its_row(capsys):
    sample = {"id": "1.0", "step": 0, "label": "", "verdict": "train", "prompt": "1+1=", "text": "2", "finish_reason": "stop", "reason": ""}
    sample |= {"versions": [{"version": 3}], "components": {}, "reward_status": "ok", "reward": 1.0}
    run = {"kind": "rl", "spec": {"data": {"prompt": "question"}}}
    inspect._print_sample(sample | {"item": {"question": "1+1=", "answer": "2\x1b[2J", "notes": "n" * 300}}, run)
    shown = capsys.readouterr().out.splitlines()
    assert shown[2] == f"  row      answer '2\\x1b[2J'  notes '{'n' * 199}…"
    inspect._print_sample(sample | {"item": None}, run)
    assert "  row" not in capsys.readouterr().out


class Pages:
    """A client whose search gives one sample a page, and at first none."""

    def __init__(self, samples):
        self.pages, self.asked = [[], *([sample] for sample in samples)], []

    def samples(self, _run_id, **query):
        self.asked.append(query)
        data = self.pages.pop(0)
        return {"object": "list", "data": data, "has_more": bool(self.pages), "next_after": f"{len(self.asked)}"}


def test_a_search_reads_pages_until_it_has_found_enough():
    client = Pages(["a", "b", "c"])
    found = inspect._found(client, "run", {"limit": 2, "text": "x"})
    assert (found["data"], found["has_more"]) == (["a", "b"], True)
    assert [(query["limit"], query.get("after")) for query in client.asked] == [(2, None), (2, "1"), (1, "2")]
    assert inspect._found(Pages(["a"]), "run", {"limit": 2})["data"] == ["a"]


def test_an_episode_says_of_each_turn_how_it_ended_and_where_it_is(capsys):
    turn = {"text": "I look.", "start": 0, "end": 4, "finish": "stop", "calls": [], "messages": [], "reward": None, "sequence": 0}
    turns = [turn | {"stop_text": "\nObservation:", "after_turn": None}, turn | {"stop_text": "", "after_turn": 0, "sequence": 1}]
    played = {"turns": turns, "end_reason": "answered", "reason": ""}
    judged = {"reward": 1.0, "reward_status": "ok", "components": {}, "advantage": None, "label": None}
    inspect._print_episode({"id": "0.0", "prompt": "p", "verdict": "train", "versions": [], "reason": "", "episode": played} | judged)
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  turn")]
    assert first.endswith(r"'I look.' (4 tokens, stopped at '\nObservation:')")
    assert second.endswith("(4 tokens, stop, sequence 2, without the thinking up to turn 1)")
