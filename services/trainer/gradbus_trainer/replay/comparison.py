"""Compares a replay with what was recorded of the run. The first difference ends it."""

from __future__ import annotations

from collections.abc import Sequence

from gradbus.errors import ReplayError
from gradbus.experience.stream_ids import segments_path
from gradbus.ids import digest_of_file
from gradbus.v1.weights_pb2 import CheckpointManifest
from gradbus_trainer.checkpoints.state import Snapshot
from gradbus_trainer.replay.plan import ReplayPlan
from gradbus_trainer.step.groups import LoggedGroup


class Comparison:
    """With the versions, checkpoints and groups of one run."""

    def __init__(self, plan: ReplayPlan) -> None:
        self.versions: list[int] = []
        """Steps of the versions that are equal."""
        self.checkpoints: list[int] = []
        """Steps of the checkpoints whose frontier and optimiser state are equal."""
        self._run_id = plan.record.run_id
        self._stored = plan.stored
        self._equal = plan.start
        checkpoints = plan.stored.checkpoints.values()
        self._trained = {index: (one.step, digest) for one in checkpoints for index, digest in one.trained.items()}

    def knows(self, step: int) -> bool:
        """Whether the digest of version `step` is recorded."""
        return step in self._stored.digests

    def groups(self, step: int, groups: Sequence[LoggedGroup]) -> None:
        """Raises ReplayError if a group of the step is not the one that a kept checkpoint names."""
        for group in groups:
            index = group.entry.index
            checkpoint, digest = self._trained.get(index, (0, group.digest))
            if digest != group.digest:
                raise ReplayError(
                    f"group {index} of step {step} in the archive is not the one that the run trained: its digest is {group.digest}, "
                    f"checkpoint {checkpoint} names {digest}; {self._advice}"
                )

    def version(self, step: int, digest: str) -> None:
        """Raises ReplayError if the recorded version has other weights."""
        if digest != self._stored.digests[step]:
            trained = f"the steps {self._equal} to {step - 1}" if step > self._equal else "the model's files or the checkpoint"
            raise ReplayError(
                f"version {step} of {self._run_id} comes out with the digest {digest}, recorded is {self._stored.digests[step]}, so "
                f"{trained} differ: their groups were changed, or this machine computes other bits; {self._advice}, "
                "and replay on a machine like the run's"
            )
        self.versions.append(step)
        self._equal = step

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Raises ReplayError if the recorded checkpoint of its step has another frontier, optimiser state or coefficients."""
        step = snapshot.state.step
        recorded = self._stored.checkpoints[step]
        if different := _difference(recorded, snapshot):
            raise ReplayError(
                f"checkpoint {step} of {self._run_id} comes out with {different} than recorded; a group that trains nothing was "
                f"changed, or this machine computes other bits: {self._advice}"
            )
        self.checkpoints.append(step)

    @property
    def _advice(self) -> str:
        return f"restore {segments_path(self._run_id)} from a copy of object storage"


def _difference(recorded: CheckpointManifest, snapshot: Snapshot) -> str:
    """What is not as recorded; empty if nothing."""
    if snapshot.state.frontier.to_message() != recorded.frontier:
        return "another frontier"
    if [digest_of_file(file.path) for file in snapshot.optimizer] != [shard.digest for shard in recorded.optimizer]:
        return "another optimiser state"
    return "" if snapshot.state.controllers == dict(recorded.controllers) else "other coefficients"
