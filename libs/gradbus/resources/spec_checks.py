"""Checks of run specs, without a run."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from gradbus.spec import RunSpec


class SpecCheckResource(BaseModel):
    """A spec that a run can have."""

    object: Literal["spec_check"] = "spec_check"
    spec: RunSpec
