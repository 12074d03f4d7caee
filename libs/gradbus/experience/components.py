"""The named components of rewards, gathered over many samples for the run's history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_NAMES: Final = 256
"""A scorer may name the components of every sample differently, and an event holds no more than 4 MB."""


def add_components(gathered: dict[str, list[float]], components: Mapping[str, float], always: str = "") -> None:
    """Adds the components of one sample; leaves out new names beyond MAX_NAMES, except `always`."""
    for name in components:  # by name: the items of a protobuf map are slow
        if name in gathered:
            gathered[name].append(components[name])
        elif len(gathered) < MAX_NAMES or name == always:
            gathered[name] = [components[name]]
