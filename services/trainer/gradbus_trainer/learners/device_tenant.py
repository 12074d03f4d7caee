"""A learner that leaves its device between two steps."""

from __future__ import annotations

from gradbus.aio.threads import in_run_thread
from gradbus_trainer.learners.base import Learner


class LearnerTenant:
    """`DeviceTenant` around a learner, which no other thread uses meanwhile."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    async def release(self) -> None:
        """See `DeviceTenant`."""
        await in_run_thread(self._learner.release, "release learner")

    async def resume(self) -> None:
        """See `DeviceTenant`."""
        await in_run_thread(self._learner.resume, "resume learner")
