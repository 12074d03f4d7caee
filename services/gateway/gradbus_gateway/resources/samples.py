"""Samples that cannot be read, and the memory that a page of samples takes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from gradbus.resources.samples import SampleResource
from gradbus_gateway.resources.episodes import characters

_TOKEN_BYTES: Final = 100
"""Of an id and a log-probability or two, each with its place in a list, and in the response."""


def unreadable_sample(entry_id: str, index: int, admitted_at: datetime) -> SampleResource:
    """Stands for all samples of a log entry that cannot be read; `index` is -1 if it is not known."""
    reason = f"the log entry {entry_id} cannot be read, so its samples are not shown; the other entries of the run are not affected"
    return SampleResource(
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


def held_bytes(sample: SampleResource) -> int:
    """About how many bytes of memory it takes: its text, and its tokens as Python's numbers."""
    prompts = [sample.tokens.prompt_ids, *(fork.prompt_ids for fork in sample.tokens.forks)] if sample.tokens else []
    tokens = sample.token_count + sum(map(len, prompts)) if sample.tokens else 0
    episode = characters(sample.episode) if sample.episode else 0
    return len(sample.prompt) + len(sample.text) + episode + tokens * _TOKEN_BYTES
