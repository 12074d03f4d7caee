"""A run that was created and could not be tagged is told to its user."""

import json
import shlex
import sys

import pytest

from gradbus.cli.runs import Submitting
from gradbus.errors import SettingsError, StackError
from gradbus.resources.runs import RunResource

RUN = {"id": "run-1", "name": "sums", "kind": "rl", "state": "queued", "desired": "running", "steps": 9, "progress": {}, "created_at": None}
SPEC = {"name": "sums", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://there:1"}, "schedule": {"steps": 9}}


class Gateway:
    """A client whose gateway goes away, or whose user loses patience, once the run is there."""

    def __init__(self, error):
        self.error, self.submitted = error, 0

    def submit(self, _body, _folder):
        self.submitted += 1
        return RunResource.model_validate(RUN | {"spec": SPEC})

    def annotate(self, _run, **_changes):
        raise self.error


@pytest.mark.parametrize("error", [StackError("the gateway is away; start it"), KeyboardInterrupt()])
def test_the_id_is_printed_with_the_command_that_writes_tags_and_note_again(error, tmp_path, capsys):
    submitting = Submitting(True, False, tmp_path / "my state", False, ("a", "b/1"), "it's\nslow")
    with pytest.raises(type(error)):
        submitting.submit(Gateway(error), {}, tmp_path)
    printed = capsys.readouterr()
    assert printed.out == "run run-1 (sums) is queued\n"
    again = ["gradbus", "tag", "run-1", "a", "b/1", "--note", "it's\nslow", "--state", f"{tmp_path}/my state"]
    assert shlex.split(printed.err.partition("again: ")[2]) == again


def test_json_has_the_run_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gradbus", "run", "--json"])
    with pytest.raises(StackError):
        Submitting(False, False, None, True, ("a",)).submit(Gateway(StackError("away; start it")), {}, tmp_path)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["id"] == "run-1"
    assert json.loads(printed.err)["message"].endswith("again: gradbus tag run-1 a")


@pytest.mark.parametrize(
    ("tags", "note", "said"),
    [(("a", "two words"), "", "--tag 'two words': "), (["t"] * 33, "", "--tag: "), ((), "x" * 4001, "--note: ")],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_no_run_may_have_is_refused_before_anything_is_sent(tags, note, said, dry_run):
    with pytest.raises(SettingsError) as error:
        Submitting(False, dry_run, None, False, tags, note)
    assert str(error.value).startswith(said)
    assert len(str(error.value)) < 300
