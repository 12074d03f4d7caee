"""Faults of a model that has no source, or more than one, or settings of the other source."""

from __future__ import annotations

from collections.abc import Iterator

from gradbus.errors import Fault
from gradbus.spec.sections import ModelSpec


def model_faults(model: ModelSpec | None, field: str = "model") -> Iterator[Fault]:
    """A fault for each field of a valid section that does not fit the others. None for one that is not valid by itself."""
    if model is None:
        return
    given = [name for name, source in model.sources.items() if source is not None]
    if len(given) != 1:
        *others, last = (f"`{name}`" for name in model.sources)
        allowed = f"exactly one of {', '.join(others)} and {last}"
        yield Fault(field, "a model has exactly one source", " and ".join(given) or "none", allowed)
        return
    if model.path is None and model.revision is not None:
        yield Fault(f"{field}.revision", "only a hub id has a revision", model.revision, "none; `version` names a version of the run")
    if model.run is None and model.version is not None:
        yield Fault(f"{field}.version", "only a run has versions", str(model.version), "none, or `run` in place of `path`")
    if model.run is None and model.adapters is not None:
        yield Fault(f"{field}.adapters", "only the model of a run has adapters", allowed="none, or `run` in place of `path`")
    if model.run is None and model.lineage is not None:
        yield Fault(f"{field}.lineage", "only the model of a run has a lineage", allowed="none, or `run` in place of `path`")
