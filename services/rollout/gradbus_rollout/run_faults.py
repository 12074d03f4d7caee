"""Which errors of a worker are the run's fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradbus.control.runs import WorkerPresence
from gradbus.errors import DatasetError, EnvironmentFaultError, ModelError


@contextmanager
def fatal_for_run(presence: WorkerPresence) -> Iterator[None]:
    """Marks an error of the run's rows, tokenizer, model or environment as fatal for the run: every other worker would fail likewise."""
    try:
        yield
    except (DatasetError, EnvironmentFaultError, ModelError):
        presence.fatal = True
        raise
