"""What the command prints, whatever a model wrote."""

import json

from gradbus.cli import inspect
from gradbus.cli.output import print_json
from gradbus.resources.page import Page
from gradbus.resources.runs import RunResource
from gradbus.resources.samples import SampleResource


def test_no_control_character_reaches_the_terminal_and_the_value_is_the_same(capsys):
    value = {"text": "é 你 \x1b[2J \x7f \x80 \x9b31m \x9f", "line": "a\nb"}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "é 你" in printed
    assert not [letter for letter in printed if letter != "\n" and (letter < " " or "\x7f" <= letter < "\xa0")]


RUN = {"id": "run-1", "name": "sums", "kind": "rl", "state": "running", "desired": "running", "steps": 9, "progress": {}}
SPEC = {"name": "sums", "model": {"path": "m"}, "data": {"train": "t", "prompt": "question"}} | {
    "reward": {"service": "grpc://there:1"},
    "schedule": {"steps": 9},
}


def sample(**given):
    base = {"index": 1, "row_index": 0, "step": 0, "prompt": "1+1=", "text": "2", "finish_reason": "stop", "reward": 1.0}
    base |= {"components": {}, "reward_status": "ok", "reason": "", "verdict": "train", "versions": [], "worker": ""}
    base |= {"dispatched_version": 3, "admitted_at": "2026-01-01T00:00:00Z", "token_count": 1}
    return SampleResource.model_validate({"id": "1.0"} | base | given)


def test_a_sample_is_shown_with_the_rest_of_its_row(capsys):
    run = RunResource.model_validate(RUN | {"created_at": None, "spec": SPEC})
    inspect._print_sample(sample(item={"question": "1+1=", "answer": "2\x1b[2J", "notes": "n" * 300}), run)
    shown = capsys.readouterr().out.splitlines()
    assert shown[2] == f"  row      answer '2\\x1b[2J'  notes '{'n' * 199}…"
    inspect._print_sample(sample(), run)
    assert "  row" not in capsys.readouterr().out


class Pages:
    """A client whose search gives one sample a page, and at first none."""

    def __init__(self, samples):
        self.pages, self.asked = [[], *([sample] for sample in samples)], []

    def samples_page(self, _run_id, after="", limit=20, **selection):
        self.asked.append((after, limit, selection))
        data = self.pages.pop(0)
        return Page[str](data=data, has_more=bool(self.pages), next_after=f"{len(self.asked)}")


def test_a_search_reads_pages_until_it_has_found_enough():
    client = Pages(["a", "b", "c"])
    found = inspect._found(client, "run", 2, {"text": "x"})
    assert (found.data, found.has_more) == (["a", "b"], True)
    assert client.asked == [("", 2, {"text": "x"}), ("1", 2, {"text": "x"}), ("2", 1, {"text": "x"})]
    assert inspect._found(Pages(["a"]), "run", 2, {}).data == ["a"]


def test_an_episode_says_of_each_turn_how_it_ended_and_where_it_is(capsys):
    turn = {"text": "I look.", "start": 0, "end": 4, "finish": "stop", "calls": [], "messages": [], "reward": None, "sequence": 0}
    turns = [turn | {"stop_text": "\nObservation:", "after_turn": None}, turn | {"stop_text": "", "after_turn": 0, "sequence": 1}]
    played = sample(episode={"turns": turns, "end_reason": "answered", "reason": "", "attempt": 0, "environment_digest": ""})
    inspect._print_episode(played, played.episode)
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  turn")]
    assert first.endswith(r"'I look.' (4 tokens, stopped at '\nObservation:')")
    assert second.endswith("(4 tokens, stop, sequence 2, without the thinking up to turn 1)")
