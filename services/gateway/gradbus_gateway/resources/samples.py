"""A sample: the prompt, the response, its reward and its advantage."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, Field

from gradbus_gateway.resources.episodes import EpisodeResource

_TOKEN_BYTES: Final = 100
"""Of an id and a log-probability or two, each with its place in a list, and in the response."""


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
        "and is not trained, `mismatched`. Empty for other responses.",
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

    @classmethod
    def unreadable(cls, entry_id: str, index: int, admitted_at: datetime) -> Self:
        """Stands for all samples of a log entry that cannot be read; `index` is -1 if it is not known."""
        reason = f"the log entry {entry_id} cannot be read, so its samples are not shown; the other entries of the run are not affected"
        return cls(
            id=entry_id,
            index=index,
            row_index=-1,
            step=None,
            prompt="",
            text="",
            finish_reason="none",
            reward=None,
            components={},
            reward_status="none",
            reason=reason,
            verdict="unreadable",
            versions=[],
            worker="",
            dispatched_version=-1,
            admitted_at=admitted_at,
            token_count=0,
        )

    @property
    def held_bytes(self) -> int:
        """About how many bytes of memory it takes: its text, and its tokens as Python's numbers."""
        prompts = [self.tokens.prompt_ids, *(fork.prompt_ids for fork in self.tokens.forks)] if self.tokens else []
        tokens = self.token_count + sum(map(len, prompts)) if self.tokens else 0
        episode = self.episode.characters if self.episode else 0
        return len(self.prompt) + len(self.text) + episode + tokens * _TOKEN_BYTES
