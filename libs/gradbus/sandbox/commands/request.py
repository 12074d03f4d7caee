"""What is asked of a sandbox and what comes back. Standard library only: the environment's process makes requests, and nobody trusts it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_SECONDS = 600
MIN_MEMORY_MIB, MAX_MEMORY_MIB = 64, 4096
MAX_TREE = 1 << 20
"""Bytes of all files together, before and after, and of the standard input."""
MAX_FILES = 256
MAX_OUTPUT = 1 << 18
"""Bytes of the standard output, and of the standard error."""
MAX_ARGUMENTS, MAX_ARGUMENT = 256, 100_000
"""An argument may have so many bytes; the kernel takes 131,072."""
_WALL_FACTOR, _WALL_MORE = 4, 1.0
_MAX_PATH, _MAX_PART, MAX_DEPTH = 1024, 200, 16
ENDS = ("exited", "time", "memory", "output", "files")


class CommandError(ValueError):
    """A request that a sandbox does not take; the message says what to change."""


@dataclass(frozen=True)
class Command:
    """One command with the files that it finds in its folder."""

    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path, relative to the folder in which the command begins."""
    stdin: bytes = b""
    seconds: float = 5.0
    memory_mib: int = 256
    keep: bool = False
    """Whether the files are given back as they are at the end."""
    wall_seconds: float | None = None
    """By the clock, if less than `longest`."""

    @property
    def longest(self) -> float:
        """Seconds by the clock after which it is ended: several times its own, for a busy machine is not its fault."""
        own = _WALL_FACTOR * self.seconds + _WALL_MORE
        return own if self.wall_seconds is None else min(own, self.wall_seconds)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "arguments": list(self.arguments),
            "files": _encoded(self.files),
            "stdin": base64.b64encode(self.stdin).decode(),
            "seconds": self.seconds,
            "memory_mib": self.memory_mib,
            "keep": self.keep,
            "wall_seconds": self.wall_seconds,
        }


@dataclass(frozen=True)
class Outcome:
    """What came of a command."""

    end: str
    """`exited`, or what it had too much of: `time`, `memory`, `output`, `files`."""
    code: int
    """Exit status; negative: the signal that killed it."""
    stdout: bytes = b""
    stderr: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        outputs = {"stdout": base64.b64encode(self.stdout).decode(), "stderr": base64.b64encode(self.stderr).decode()}
        return {"end": self.end, "code": self.code, "files": _encoded(self.files), **outputs}


def read_command(document: Any) -> Command:
    """The command that a JSON value asks for. Raises CommandError."""
    match document:
        case {
            "arguments": list(arguments),
            "files": dict(files),
            "stdin": str(stdin),
            "seconds": int() | float() as seconds,
            "memory_mib": int(memory),
            "keep": bool(keep),
            "wall_seconds": int() | float() | None as wall,
            **others,
        } if not others:
            pass
        case _:
            raise CommandError("a command has arguments, files, stdin, seconds, memory_mib, keep and wall_seconds, and nothing else")
    if not 0 < len(arguments) <= MAX_ARGUMENTS or not all(isinstance(one, str) and _is_argument(one) for one in arguments):
        raise CommandError(f"a command is 1 to {MAX_ARGUMENTS} texts of at most {MAX_ARGUMENT} bytes without a zero character")
    if sum(map(len, arguments)) > MAX_TREE:
        raise CommandError(f"a command has at most {MAX_TREE} characters in all; give files or a standard input")
    if (
        isinstance(seconds, bool)
        or isinstance(memory, bool)
        or not 0 < seconds <= MAX_SECONDS
        or not MIN_MEMORY_MIB <= memory <= MAX_MEMORY_MIB
    ):
        raise CommandError(f"seconds are at most {MAX_SECONDS}, and memory_mib is from {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB}")
    return Command(tuple(arguments), _read_files(files), _decoded(stdin), float(seconds), memory, keep, wall)


def read_outcome(document: Any) -> Outcome:
    """Raises CommandError for what no sandbox says."""
    match document:
        case {"end": str(end), "code": int(code), "stdout": str(stdout), "stderr": str(stderr), "files": dict(files)} if end in ENDS:
            return Outcome(end, code, _decoded(stdout), _decoded(stderr), _read_files(files))
    raise CommandError("a sandbox sent no outcome")


def _read_files(files: Mapping[Any, Any]) -> dict[str, bytes]:
    if len(files) > MAX_FILES:
        raise CommandError(f"there are {len(files)} files; at most {MAX_FILES}")
    read = {}
    for path, content in files.items():
        if not isinstance(path, str) or not is_path(path) or not isinstance(content, str):
            raise CommandError(f"{str(path)[:80]!r} is no relative path such as `folder/file.py`, or has no content")
        read[path] = _decoded(content)
    folders = {folder for path in read for folder in _folders(path)}
    if conflict := folders & read.keys():
        raise CommandError(f"{min(conflict)[:80]!r} is a file and a folder; leave one out")
    if sum(map(len, read.values())) > MAX_TREE:
        raise CommandError(f"the files have more than {MAX_TREE} bytes in all; shorten them")
    return read


def is_path(path: str) -> bool:
    """Whether a path stays below the folder that it begins in."""
    parts = path.split("/")
    is_plain = path.isprintable() and len(path.encode("utf-8", "replace")) <= _MAX_PATH and len(parts) <= MAX_DEPTH
    return is_plain and not any(part in {"", ".", ".."} or len(part.encode("utf-8", "replace")) > _MAX_PART for part in parts)


def _folders(path: str) -> list[str]:
    """Those in which it lies: of `a/b/c` they are `a` and `a/b`."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _is_argument(text: str) -> bool:
    return "\0" not in text and len(text.encode("utf-8", "replace")) <= MAX_ARGUMENT


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: base64.b64encode(content).decode() for path, content in files.items()}


def _decoded(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CommandError("a content is not in base64") from error
    if len(content) > MAX_TREE:
        raise CommandError(f"a content has more than {MAX_TREE} bytes; shorten it")
    return content
