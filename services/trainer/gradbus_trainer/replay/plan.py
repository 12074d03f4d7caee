"""Which versions a replay makes again, and whether that can be compared with anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gradbus.control.replay import ReplayOrder
from gradbus.control.runs import RunRecord
from gradbus.errors import ReplayError
from gradbus.run_files.versions import StoredVersions
from gradbus.v1.weights_pb2 import CheckpointManifest

_SET_BY_PROCESS: Final[Mapping[str, str]] = {"omp_num_threads": "OMP_NUM_THREADS", "kernels": "GRADBUS_KERNELS"}
"""Entries of a fingerprint that are variables of the trainer's process."""
_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The versions from step `start` to step `to` of one run."""

    record: RunRecord
    stored: StoredVersions
    start: int
    to: int

    @classmethod
    def of(cls, order: ReplayOrder, record: RunRecord, stored: StoredVersions) -> ReplayPlan:
        """What the order asks for. Raises ReplayError if the run has no such steps, or nothing is recorded of them."""
        steps = record.spec.schedule.steps
        if not stored.digests:
            raise ReplayError(f"no version of {record.run_id} is recorded in object storage; replay the run once it has begun to train")
        to = max(stored.checkpoints, default=max(stored.digests)) if order.to is None else order.to
        if not 0 <= to <= steps:
            raise ReplayError(f"{record.run_id} has {steps} steps and no version {to}; give --to a step from 0 to {steps}")
        if to not in stored.digests:
            raise ReplayError(f"no digest of version {to} of {record.run_id} is recorded; give --to one of the steps {_near(to, stored)}")
        if order.start and order.start not in stored.checkpoints:
            kept = ", ".join(map(str, sorted(stored.checkpoints))) or "none"
            raise ReplayError(
                f"no checkpoint of step {order.start} is kept, those that are: {kept}; give --from one of them, or leave it out"
            )
        if order.start > to:
            raise ReplayError(f"a replay from step {order.start} does not come to step {to}; give --from a smaller step than --to")
        return cls(record, stored, order.start, to)

    @property
    def first(self) -> CheckpointManifest | None:
        """The checkpoint to begin with; None for the base model."""
        return self.stored.checkpoints[self.start] if self.start else None

    def variables(self) -> Mapping[str, str]:
        """Variables of the trainer's process that decide bits, as they were; an empty one was not set."""
        checkpoint = next(self._compared(), None)
        return {variable: checkpoint.fingerprint.get(name, "") for name, variable in _SET_BY_PROCESS.items()} if checkpoint else {}

    def differences(self, here: Mapping[str, str]) -> list[str]:
        """What differs between the trainer of the replayed steps and this process, whose fingerprint is `here`."""
        found: dict[str, None] = {}
        for checkpoint in self._compared():
            there = checkpoint.fingerprint
            for name in sorted(here.keys() | there.keys()):
                if (was := there.get(name, "")) != (now := here.get(name, "")):
                    found[f"{name} was {was or 'not set'} and is {now or 'not set'}"] = None
        return list(found)

    def _compared(self) -> Iterator[CheckpointManifest]:
        """The checkpoints of the replayed steps that are kept, oldest first; if there are none, the next one."""
        later = [step for step in sorted(self.stored.checkpoints) if step > self.start] or sorted(self.stored.checkpoints)[-1:]
        yield from (self.stored.checkpoints[step] for step in [step for step in later if step <= self.to] or later[:1])


def _near(step: int, stored: StoredVersions) -> str:
    """The recorded steps beside `step`, in order."""
    nearest = sorted(stored.digests, key=lambda known: abs(known - step))[:_SHOWN]
    return ", ".join(map(str, sorted(nearest)))
