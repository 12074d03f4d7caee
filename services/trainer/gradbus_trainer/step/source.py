"""The interface between the train loop and the source of its groups: the live log, an archive, a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gradbus_trainer.step.groups import LoggedGroup


class StepSource(Protocol):
    """Yields the groups of each step, in order of steps. Nothing but the log decides which groups make a step."""

    @property
    def waiting(self) -> int:
        """Groups that have arrived for later steps."""
        ...

    async def next_step(self, step: int) -> Sequence[LoggedGroup] | None:
        """Every group that step `step` consumes, in order of index; waits for those that are missing.

        None if the source has ended: no group will come any more.
        """
        ...
