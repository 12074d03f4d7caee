"""Live workers."""

from __future__ import annotations

from typing import Literal

from gradbus.control.runs import WorkerPresence


class WorkerResource(WorkerPresence):
    """A live worker."""

    object: Literal["worker"] = "worker"
