"""Hidden tests of a program: what a sandbox is asked, and which tests its answer passes. What is expected never enters a sandbox, but for
`assert`."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gradbus.sandbox.commands.request import MAX_TREE, Command, Outcome
from gradbus.spec import CodeGrader

MAX_TESTS: Final = 64
_MAX_SAID: Final = 1 << 17
"""Bytes of what all tests of a program print; in base64 they fit in MAX_OUTPUT."""
_RUNNERS_SHARE: Final = 0.8
"""Of the time by the clock: then the runner ends the test in progress and says its answers, before the sandbox ends the runner."""
_PROGRAM: Final = "solution.py"
# A program that takes too long on one test gets no further one: most would take as long on each. The limit is one of the processor, for a
# busy machine is not the program's fault.
_RUNNER: Final = """
import base64, json, math, resource, subprocess, sys, tempfile, time
word, seconds, most, end = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), time.monotonic() + float(sys.argv[4])
cpu = math.ceil(seconds)

def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

answers = []
for arguments, given in json.load(sys.stdin):
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run([sys.executable, *arguments], input=given.encode("utf-8", "replace"), stdout=said,
                                  stderr=subprocess.DEVNULL, timeout=max(0.0, min(4 * seconds + 1, end - time.monotonic())),
                                  preexec_fn=limit)
        except subprocess.TimeoutExpired:
            break
        said.seek(0)
        answers.append([done.returncode, base64.b64encode(said.read(most + 1)).decode()])
        if done.returncode in (-9, -24):
            break
print(word, json.dumps(answers))
"""
_BEGIN: Final = """
import json, os, sys
given = json.loads(sys.stdin.readline())
said = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0); os.dup2(null, 1)
names = {"__name__": "solution"}
exec(compile(open("solution.py").read(), "solution.py", "exec"), names)
"""
_CALL: Final = f"{_BEGIN}print(json.dumps(names[given[0]](*given[1]), ensure_ascii=False), file=said, flush=True)\n"
_ASSERT: Final = f"{_BEGIN}exec(compile(given[1], 'test', 'exec'), names)\nprint(given[0], file=said, flush=True)\n"


class TestsError(ValueError):
    """The tests of a row are none; the message says how they are written."""

    __test__ = False  # no test of pytest's


@dataclass(frozen=True, slots=True)
class _Test:
    arguments: Sequence[str]
    stdin: str
    expected: Any


@dataclass(frozen=True, slots=True)
class Trial:
    """A program with its tests, ready for a sandbox."""

    command: Command
    _word: str
    _tests: Sequence[_Test]
    _style: str

    def passed(self, outcome: Outcome) -> int:
        """How many tests the program passes. One that ends the sandbox, or has too much of something, passes none."""
        first, _, rest = outcome.stdout.decode("utf-8", "replace").partition(" ")
        if outcome.end != "exited" or first != self._word:
            return 0
        answers = json.loads(rest)  # of the runner, which comes by an argument and imports nothing of the program's
        return sum(code == 0 and self._is_right(said, test.expected) for (code, said), test in zip(answers, self._tests, strict=False))

    @property
    def tests(self) -> int:
        """How many there are."""
        return len(self._tests)

    def _is_right(self, encoded: str, expected: Any) -> bool:
        said = base64.b64decode(encoded).decode("utf-8", "replace")
        if self._style != "call":
            return bool(said.split() == expected.split())
        try:
            return bool(json.loads(said) == expected)
        except (ValueError, RecursionError):
            return False


def trial(program: str, tests: str, grader: CodeGrader, wall_seconds: float) -> Trial:
    """The trial of a program, which has at most `wall_seconds` by the clock: tests that it has not ended by then count as failed.

    `tests`: as the row has them. Raises TestsError.
    """
    found = list(_tests(_parsed(tests), grader))
    if not 0 < len(found) <= MAX_TESTS:
        raise TestsError(f"the row has {len(found)} tests; a program is tried on 1 to {MAX_TESTS}")
    most = _MAX_SAID // len(found)
    if any(_size(test.expected, grader.style) > most for test in found):
        raise TestsError(f"a test of the row expects more than {most} bytes; shorten its output, or give fewer tests")
    word = secrets.token_hex(8)
    asked = json.dumps([[test.arguments, test.stdin] for test in found]).encode()
    if len(asked) > MAX_TREE:
        raise TestsError(f"the inputs of the row's tests have {len(asked)} bytes; at most {MAX_TREE}")
    command = Command(
        ("python", "-I", "-c", _RUNNER, word, str(grader.seconds), str(most)),
        files={_PROGRAM: program.encode("utf-8", "replace")[:MAX_TREE]},
        stdin=asked,
        seconds=min(600.0, grader.seconds * len(found) + 1.0),
        memory_mib=grader.memory_mib,
        wall_seconds=wall_seconds,
    )
    command = replace(command, arguments=(*command.arguments, str(_RUNNERS_SHARE * command.longest)))
    return Trial(command, word, found, grader.style)


def _size(expected: Any, style: str) -> int:
    """Bytes of what a program prints to be right."""
    text = json.dumps(expected, ensure_ascii=False) if style == "call" else expected
    return len(text.encode("utf-8", "backslashreplace"))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TestsError(f"the row's tests are not JSON: {error}") from error


def _tests(given: Any, grader: CodeGrader) -> list[_Test]:
    match given:
        case {"inputs": list(inputs), "outputs": list(outputs)} if len(inputs) == len(outputs):
            given = [list(pair) for pair in zip(inputs, outputs, strict=True)]
    if not isinstance(given, list):
        raise TestsError("the row's tests are no list, and no object with as many `inputs` as `outputs`")
    return [_test(one, grader) for one in given]


def _test(given: Any, grader: CodeGrader) -> _Test:
    match grader.style, given:
        case "stdin", [str(stdin), str(expected)]:
            return _Test((_PROGRAM,), stdin, expected)
        case "call", [list(arguments), expected]:
            return _Test(("-c", _CALL), json.dumps([grader.function, arguments]) + "\n", expected)
        case "assert", str(source):
            word = secrets.token_hex(8)
            return _Test(("-c", _ASSERT), json.dumps([word, source]) + "\n", word)
    forms: Mapping[str, str] = {"stdin": "[input, output], two texts", "call": "[list of arguments, value]", "assert": "Python source"}
    raise TestsError(f"a test of the row is not {forms[grader.style]}, as style = {grader.style!r} has it")
