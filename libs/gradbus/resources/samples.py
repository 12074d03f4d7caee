"""A sample: the prompt, the response, its reward and its advantage."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from gradbus.resources.episodes import EpisodeResource


class SpanResource(BaseModel):
    """Response tokens [start, end) of one policy version or, in an episode, of another author."""

    start: int
    end: int
    version: int
    trainable: bool
    sequence: int = Field(0, description="In which of the sample's sequences: 0 is its own, k its k-th fork.")
    author: str = Field(
        "policy", description="`policy`, `frame` (the chat template), `tool`, `user` or `close` (an end that was not drawn)."
    )


class SequenceTokens(BaseModel):
    """Prompt and response of a sequence, token by token."""

    prompt_ids: list[int] = Field(description="Of the prompt, as the engine sampled from it and the trainer learns with it.")
    ids: list[int] = Field(description="Of the response.")
    logprobs: list[float] = Field(description="Of each token, under the policy version that sampled it.")
    reference_logprobs: list[float] = Field(description="Of each token, under the frozen base model; empty when the run has no KL term.")
    teacher_logprobs: list[float] = Field(description="Of each token, under the teacher; empty when the run has none.")


class SampleTokens(SequenceTokens):
    """Those of a sample, and of the further sequences of its episode."""

    forks: list[SequenceTokens] = Field([], description="Of an episode whose agent did not go on with one conversation: the other ones.")


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
    label: str = Field(
        "",
        description="Of a response of the dataset: `chosen` or `rejected`; `desirable`, `undesirable` or, if it belongs to another row "
        "and is not trained, `mismatched`. `greedy`: the baseline of its group's other samples, not trained. Empty for other responses.",
    )
    advantage: float | None = Field(
        None, description="That of its tokens; null if it is not trained, if its tokens have different ones, or if the step is whitened."
    )
    versions: list[SpanResource]
    worker: str
    engine: str = ""
    dispatched_version: int = Field(description="Policy version that its task named.")
    admitted_at: datetime = Field(description="When its group entered the experience log.")
    trace_id: str = Field("", description="Trace that its worker recorded; empty when it recorded none.")
    token_count: int = Field(description="Tokens of the response, in all its sequences.")
    episode: EpisodeResource | None = Field(None, description="Of a run with an environment.")
    tokens: SampleTokens | None = Field(None, description="With `include=tokens`.")
    item: dict[str, Any] | None = Field(
        None, description="With `include=item`: its row of the dataset, as the scorer sees it; null if the dataset has more than 1 GiB."
    )
