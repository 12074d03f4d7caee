"""A plan: what a run needs, before it is submitted. Memory in bytes, times in seconds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class PlannedCard(BaseModel):
    """The cards that a plan is made for."""

    name: str
    memory: int
    count: int
    cores: int = Field(description="Of a CPU; 0: a GPU.")


class PlannedModel(BaseModel):
    """The model that is trained."""

    architecture: str
    parameters: int
    trained: int


class PlannedWorkload(BaseModel):
    """Mean lengths, and the tokens of a micro-batch."""

    prompt_tokens: int
    longest_prompt_tokens: int = Field(0, description="Of the rows that were measured; as `prompt_tokens` if none were.")
    response_tokens: int
    packed_tokens: int


class PlannedPart(BaseModel):
    """A part of a process's memory."""

    name: str
    bytes: int


class PlannedTenant(BaseModel):
    """The memory of a process."""

    name: str
    bytes: int
    parts: list[PlannedPart]


class PlannedRoom(BaseModel):
    """One card, or a machine without, and the processes on it."""

    tenants: list[str]
    needed: int
    available: int


class PlannedSeconds(BaseModel):
    """Of a step and of its phases."""

    step: float
    generate: float
    train: float
    export: float
    load: float
    switch: float


class PlannedDivision(BaseModel):
    """A way to divide the cards, and what a step takes with it."""

    placement: Literal["separate", "shared", "timed", "together"]
    trainers: int
    rollouts: int
    fits: bool
    rooms: list[PlannedRoom]
    seconds: PlannedSeconds
    bottleneck: str


class PlannedChange(BaseModel):
    """The memory of a process with one other setting."""

    setting: str
    tenant: str
    bytes: int


class PlanResource(BaseModel):
    """What a run needs. The fastest division that fits is the first."""

    object: Literal["plan"] = "plan"
    card: PlannedCard
    model: PlannedModel
    workload: PlannedWorkload
    tenants: list[PlannedTenant]
    divisions: list[PlannedDivision]
    changes: list[PlannedChange]
