"""How the end of a process is told."""

import signal

import pytest

from gradbus.exit_status import describe_exit


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGKILL, "killed by SIGKILL"),
        (-signal.SIGRTMIN - 1, f"killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_an_end_is_told_by_its_exit_code_or_its_signal(status, words):
    assert describe_exit(status) == words
