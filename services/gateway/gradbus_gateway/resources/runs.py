"""What the routes answer with, and so the schemas in the OpenAPI document."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, Field

from gradbus.access.api_keys import Scope
from gradbus.bus import Event
from gradbus.control.runs import DesiredState, RunProgress, RunState, WorkerPresence
from gradbus.spec import RunSpec
from gradbus_gateway.runs.store import Run, UnreadableRun

Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    """One page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool = False
    next_after: str | None = Field(None, description="Send as `?after=` for the next page.")

    @classmethod
    def of(cls, found: list[tuple[str, Item]], limit: int) -> Self:
        """A page of (cursor, item), of which one more than `limit` was looked for."""
        kept = found[:limit]
        more = len(found) > limit
        return cls(data=[item for _, item in kept], has_more=more, next_after=kept[-1][0] if more else None)


class RunSummary(BaseModel):
    """A run in a list."""

    object: Literal["run"] = "run"
    id: str
    name: str
    state: RunState | Literal["unreadable"]
    desired: DesiredState
    reason: str = Field("", description="Why it is in this state, and what to do if it should not be.")
    waiting_for: str = Field("", description="What it waits for and who owes it.")
    steps: int = Field(description="Steps the run will take.")
    progress: RunProgress
    created_at: datetime | None
    updated_at: datetime | None = None
    finished_at: datetime | None = None

    @classmethod
    def of(cls, run: Run | UnreadableRun) -> Self:
        """The summary of `run`; of one that cannot be read, its id and the reason."""
        if isinstance(run, UnreadableRun):
            unknown = {"name": "", "desired": "running", "steps": 0, "progress": RunProgress(), "created_at": None}
            return cls(id=run.run_id, state="unreadable", reason=run.reason, **unknown)
        return cls(**_fields(run))


class RunResource(RunSummary):
    """A run with its spec: every default and digest filled in."""

    spec: RunSpec

    @classmethod
    def whole(cls, run: Run) -> Self:
        """All of `run`."""
        return cls(**_fields(run), spec=run.record.spec)


class EventResource(BaseModel):
    """One line of a run's history. `id` grows along the run, with gaps."""

    object: Literal["event"] = "event"
    id: int
    type: str
    level: str
    message: str
    data: dict[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, event: Event) -> Self:
        """The resource of a stored event."""
        return cls(
            id=event.sequence,
            type=event.type,
            level=event.level,
            message=event.message,
            data=dict(event.data),
            created_at=_time(event.created_unix_ns),
        )


class SpanResource(BaseModel):
    """Response tokens [start, end) that one policy version produced."""

    start: int
    end: int
    version: int
    trainable: bool


class SampleTokens(BaseModel):
    """The response token by token."""

    ids: list[int]
    logprobs: list[float] = Field(description="Of the sampled tokens, by the policy that sampled them.")
    reference_logprobs: list[float] = Field(description="By the frozen base model; empty when the run has no KL term.")


class SampleResource(BaseModel):
    """One completion as it was judged."""

    object: Literal["sample"] = "sample"
    id: str
    index: int = Field(description="Its group.")
    row_index: int = Field(description="Index of its row in the dataset, from 0. Messages name lines of the file instead, from 1.")
    step: int | None = Field(description="Step that trains it (`fixed_lag`).")
    prompt: str
    text: str
    finish_reason: str
    reward: float | None
    components: dict[str, float]
    reward_status: str
    reason: str
    verdict: str
    advantage: float | None = Field(None, description="Against its group; null for a sample that is not trained.")
    versions: list[SpanResource]
    worker: str
    engine: str = ""
    dispatched_version: int = Field(description="The version its task named.")
    admitted_at: datetime = Field(description="When its group entered the experience log.")
    trace_id: str = Field("", description="Of the trace its worker recorded; empty when none was.")
    token_count: int = Field(description="Response tokens.")
    tokens: SampleTokens | None = Field(None, description="With `include=tokens`.")


class VersionResource(BaseModel):
    """A published policy version and who holds it."""

    object: Literal["version"] = "version"
    version: int
    term: int
    digest: str
    noop: bool
    bytes: int
    whole: bool = Field(description="Stored whole, not as a delta alone: it can be exported.")
    held_by: list[str]


class ExportFile(BaseModel):
    """One file of an exported model."""

    name: str
    id: str = Field(description="GET /v1/files/{id} downloads it.")
    bytes: int | None = None


class ExportMerge(BaseModel):
    """Adapters that `files` lack."""

    adapters: ExportFile
    scale: float = Field(description="W + scale · B A is a weight's value, in float32.")


class ExportResource(BaseModel):
    """A policy version as a folder in Hugging Face layout."""

    object: Literal["export"] = "export"
    run_id: str
    version: int
    final: bool = Field(description="Whether the run is over and this is its last version.")
    digest: str
    files: list[ExportFile]
    merge: ExportMerge | None = Field(None, description="The weights among `files` are the base model's; `gradbus export` adds these.")


class FileResource(BaseModel):
    """A stored file."""

    object: Literal["file"] = "file"
    id: str
    bytes: int


class SignInResource(BaseModel):
    """A link that signs a browser in, once."""

    object: Literal["sign_in"] = "sign_in"
    path: str = Field(description="Below the gateway's address.")
    expires_at: datetime


class CallerResource(BaseModel):
    """An API key, as its holder may see it."""

    object: Literal["caller"] = "caller"
    id: str
    name: str
    scopes: tuple[Scope, ...]


class WorkerResource(WorkerPresence):
    """A live worker."""

    object: Literal["worker"] = "worker"


def _fields(run: Run) -> dict[str, Any]:
    status = run.status
    return {
        "id": run.record.run_id,
        "name": run.record.spec.name,
        "state": run.state,
        "desired": run.desired,
        "reason": status.reason if status else "",
        "waiting_for": status.waiting_for if status else "",
        "steps": run.record.spec.schedule.steps,
        "progress": status.progress if status else RunProgress(),
        "created_at": _time(run.record.created_unix_ns),
        "updated_at": _time(status.updated_unix_ns) if status and status.updated_unix_ns else None,
        "finished_at": _time(status.finished_unix_ns) if status and status.finished_unix_ns else None,
    }


def _time(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC)
