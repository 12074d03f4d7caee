"""How a process ended, in words."""

from __future__ import annotations

import signal


def describe_exit(status: int) -> str:
    """`killed by SIGKILL`, or `exit code 3`. `status` is as Python reports it: negative for a signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-status}"
