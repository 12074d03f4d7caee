"""Paths of a run's objects: `runs/<run>/...`. Its archived log has `gradbus.experience.stream_ids`."""

from __future__ import annotations

from typing import Final

from gradbus.v1.weights_pb2 import CheckpointManifest, WeightManifest

RUNS: Final = "runs"


def record_path(run_id: str) -> str:
    """Path of the run's record."""
    return f"{RUNS}/{run_id}/record"


def versions_path(run_id: str) -> str:
    """The folder of the manifests of the run's versions."""
    return f"{RUNS}/{run_id}/versions"


def version_path(manifest: WeightManifest) -> str:
    """Path of a version's manifest."""
    return f"{versions_path(manifest.run_id)}/{manifest.step}-{manifest.term}"


def checkpoints_path(run_id: str) -> str:
    """The folder of the manifests of the run's checkpoints."""
    return f"{RUNS}/{run_id}/checkpoints"


def checkpoint_path(manifest: CheckpointManifest) -> str:
    """Path of a checkpoint's manifest."""
    return f"{checkpoints_path(manifest.run_id)}/{manifest.step}-{manifest.term}"


def digests_path(run_id: str) -> str:
    """The folder with the digests of versions that retention has deleted."""
    return f"{RUNS}/{run_id}/digests"
