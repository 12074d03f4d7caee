"""A sample: the prompt, the response, its reward and its advantage."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


class SpanResource(BaseModel):
    """Response tokens [start, end) that one policy version sampled."""

    start: int
    end: int
    version: int
    trainable: bool


class SampleTokens(BaseModel):
    """The response, token by token."""

    ids: list[int]
    logprobs: list[float] = Field(description="Of each token, under the policy version that sampled it.")
    reference_logprobs: list[float] = Field(description="Of each token, under the frozen base model; empty when the run has no KL term.")


class SampleResource(BaseModel):
    """A sample with its reward and its verdict."""

    object: Literal["sample"] = "sample"
    id: str
    index: int = Field(description="Index of its group.")
    row_index: int = Field(description="Index of its row in the dataset, from 0. Messages name lines of the file instead, from 1.")
    step: int | None = Field(description="Step that trains it; null with a `free` schedule.")
    prompt: str
    text: str
    finish_reason: str
    reward: float | None
    components: dict[str, float]
    reward_status: str
    reason: str
    verdict: str
    advantage: float | None = Field(None, description="Relative to its group; null for a sample that is not trained.")
    versions: list[SpanResource]
    worker: str
    engine: str = ""
    dispatched_version: int = Field(description="Policy version that its task named.")
    admitted_at: datetime = Field(description="When its group entered the experience log.")
    trace_id: str = Field("", description="Trace that its worker recorded; empty when it recorded none.")
    token_count: int = Field(description="Tokens of the response.")
    tokens: SampleTokens | None = Field(None, description="With `include=tokens`.")
