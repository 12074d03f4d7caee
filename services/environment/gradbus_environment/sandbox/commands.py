"""`self.sandbox` of a user's environment: commands that the service executes in sandboxes. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradbus.sandbox.commands.request import MAX_OUTPUT, Command, CommandError, Outcome, read_command, read_outcome
from gradbus_environment.sandbox.world import FaultError

Document = dict[str, Any]
Content = str | bytes


@dataclass(frozen=True)
class Result:
    """What came of a command."""

    end: str
    """`exited`, or what it had too much of: `time`, `memory`, `output` or `files`."""
    code: int
    """Exit status; negative: the signal that killed it."""
    stdout: str
    """Bytes that are no UTF-8 are replaced; so in `stderr`."""
    stderr: str
    files: dict[str, Content] = field(default_factory=dict)
    """With `keep`: the files at the end by path, as texts where they are UTF-8, otherwise as bytes."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with the exit status 0. The command chooses that: it is no proof of anything."""
        return self.end == "exited" and self.code == 0


class Sandbox:
    """Executes commands, each in a sandbox of its own."""

    def __init__(self, ask: Callable[[Document], Document] | None) -> None:
        self._ask = ask

    def run(
        self,
        command: Sequence[str],
        files: Mapping[str, Content] | None = None,
        stdin: Content = "",
        seconds: float = 5.0,
        memory_mib: int = 256,
        keep: bool = False,
    ) -> Result:
        """Executes a command such as `["python", "main.py"]` in a folder with nothing but `files`, which come by relative path.

        `seconds` of the processor, and four times as long by the clock; `memory_mib` of all its processes together. With `keep` the
        result has the files at the end. No process is left afterwards, and nothing that it wrote. Raises ValueError for what no sandbox
        takes. In a run without a sandbox every call fails the episode.
        """
        if self._ask is None:
            raise FaultError('self.sandbox executes nothing in this run; set sandbox = "namespaces" in [environment]')
        if isinstance(command, str):
            raise CommandError('a command is a list of texts, such as ["python", "main.py"]')
        asked = _checked(Command(tuple(command), _contents(files or {}), _bytes(stdin), seconds, memory_mib, keep))
        said = self._ask(asked)
        if "refused" in said:
            raise CommandError(str(said["refused"]))
        return _result(read_outcome(said["outcome"]))

    def check(self, files: Mapping[str, Content]) -> None:
        """Raises ValueError if no sandbox takes `files`: for tools by which the policy writes one, so that `reward` cannot fail later."""
        _checked(Command(("true",), _contents(files)))


def _checked(command: Command) -> Document:
    """As JSON. What the service would refuse is refused here."""
    asked = command.document()
    read_command(json.loads(json.dumps(asked)))
    return asked


def _contents(files: Mapping[str, Content]) -> dict[str, bytes]:
    return {path: _bytes(content) for path, content in files.items()}


def _result(outcome: Outcome) -> Result:
    stdout, stderr = (one[:MAX_OUTPUT].decode("utf-8", "replace") for one in (outcome.stdout, outcome.stderr))
    return Result(outcome.end, outcome.code, stdout, stderr, {path: _content(one) for path, one in outcome.files.items()})


def _bytes(content: Content) -> bytes:
    return content.encode("utf-8", "replace") if isinstance(content, str) else bytes(content)


def _content(content: bytes) -> Content:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
