"""Faults of a model that has no source, or more than one, or settings of the other source."""

from __future__ import annotations

from collections.abc import Iterator

from gradbus.errors import Fault
from gradbus.spec.sections import ModelSpec


def model_faults(model: ModelSpec | None, field: str = "model") -> Iterator[Fault]:
    """A fault for each field of a valid section that does not fit the others. None for one that is not valid by itself."""
    if model is None:
        return
    if (model.path is None) == (model.run is None):
        given = "neither" if model.path is None else "both"
        yield Fault(field, "a model has exactly one source", given, "exactly one of `path` and `run`")
        return
    if model.run is not None and model.revision is not None:
        yield Fault(f"{field}.revision", "only a hub id has a revision", model.revision, "none; `version` names a version of the run")
    if model.run is None and model.version is not None:
        yield Fault(f"{field}.version", "only a run has versions", str(model.version), "none, or `run` in place of `path`")
    if model.run is None and model.lineage is not None:
        yield Fault(f"{field}.lineage", "only the model of a run has a lineage", allowed="none, or `run` in place of `path`")
