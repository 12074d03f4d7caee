"""The requests of the REST interface, each with the model of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter, ValidationError

from gradbus.client.answers import checked
from gradbus.errors import AnswerError
from gradbus.resources.history import HistoryResource
from gradbus.resources.lineage import LineageResource
from gradbus.resources.page import Page
from gradbus.resources.reward import RewardResource
from gradbus.resources.runs import EventResource, RunResource, RunSummary
from gradbus.resources.samples import SampleResource
from gradbus.resources.sign_ins import SignInResource
from gradbus.resources.spec_checks import SpecCheckResource
from gradbus.resources.version_lineage import VersionLineageResource
from gradbus.resources.versions import ExportResource, VersionResource
from gradbus.resources.workers import WorkerResource

Json = dict[str, Any]
Answer = TypeVar("Answer")
Action = Literal["pause", "resume", "cancel"]
LARGEST_PAGE = 1000
_SECONDS = 30.0
SUBMIT_SECONDS = 600.0
"""The gateway downloads a model from the hub before it answers."""


class SampleSelection(TypedDict, total=False):
    """Which samples; what is left out selects all."""

    step: int
    """The step that trains them."""
    index: int
    """Of their group."""
    row: int
    """Of the dataset, from 0."""
    text: str
    """In prompt, response or reason."""
    verdict: str
    """Of their group: `train`, `filtered` or `dropped`."""
    min_reward: float
    max_reward: float
    include: str | list[str]
    """`tokens`, `item` (the row of the dataset), or both."""


class HistoryPart(TypedDict, total=False):
    """Which part of a run's history; what is left out selects all."""

    points: int
    """Most buckets of steps, beside the first step and the newest 50; by default 500."""
    start: int
    """The first step, or version of an evaluation."""
    end: int
    """The last one."""
    column: str | Sequence[str]
    """Names of metrics."""
    events: int
    """How many of the newest events that are no metrics; by default none."""


class AnnotationChanges(TypedDict, total=False):
    """What is to change of a run's tags and note; what is left out stays."""

    add_tags: Sequence[str]
    remove_tags: Sequence[str]
    note: str
    """Replaces the note; empty: none."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A request and the model of its answer."""

    method: str
    path: str
    answer: type[Answer]
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = _SECONDS

    @property
    def request(self) -> Json:
        """Arguments of `request` of an HTTP client."""
        given = {"method": self.method, "url": self.path, "params": self.params, "headers": self.headers, "timeout": self.seconds}
        return given if self.body is None else given | {"json": self.body}

    def read(self, response: httpx2.Response) -> Answer:
        """The answer, also one with fields that its model does not have. Raises like `checked`, and AnswerError."""
        body = checked(response).content or b"null"  # 204 has none
        return parsed(self.answer, body, f"the answer to {self.method} {self.path}")


def parsed(answer: type[Answer], body: str | bytes, what: str) -> Answer:
    """The model of a JSON document, with the fields that it does not have. Raises AnswerError, with `what` the document is."""
    model: TypeAdapter[Answer] = TypeAdapter(answer)
    try:
        return model.validate_json(body, extra="allow")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise AnswerError(
            f"{what} is not what this client reads ({where}: {first['msg']}); "
            "check the gateway's address, and install the gateway's release of gradbus"
        ) from None


def get_run(run_id: str) -> Call[RunResource]:
    """A run with its spec."""
    return Call("GET", _path(run_id), RunResource)


def act(run_id: str, action: Action) -> Call[RunResource]:
    """Requests another state."""
    return Call("POST", f"{_path(run_id)}/{action}", RunResource)


def get_reward(run_id: str) -> Call[RewardResource]:
    """The scorers of a run."""
    return Call("GET", f"{_path(run_id)}/reward", RewardResource)


def put_reward(run_id: str, scorer: Json) -> Call[RewardResource]:
    """Another scorer for a run."""
    return Call("PUT", f"{_path(run_id)}/reward", RewardResource, body=scorer, seconds=SUBMIT_SECONDS)


def delete(run_id: str) -> Call[None]:
    """Deletes a run that has ended."""
    return Call("DELETE", _path(run_id), type(None))


def annotate(run_id: str, changes: AnnotationChanges) -> Call[RunResource]:
    """Changes tags and note."""
    return Call("PATCH", _path(run_id), RunResource, body={**changes})


def list_runs(after: str = "", limit: int = LARGEST_PAGE, tags: Sequence[str] = ()) -> Call[Page[RunSummary]]:
    """Runs that have all `tags`, newest first."""
    return Call("GET", "/v1/runs", Page[RunSummary], {"tag": list(tags), "after": after, "limit": limit})


def list_events(run_id: str, after: int = 0, limit: int = LARGEST_PAGE) -> Call[Page[EventResource]]:
    """Events, oldest first."""
    return Call("GET", events_path(run_id), Page[EventResource], {"after": after, "limit": limit})


def get_history(run_id: str, part: HistoryPart) -> Call[HistoryResource]:
    """Metrics as columns."""
    names = {"start": "from", "end": "to"}
    asked = {names.get(name, name): value for name, value in part.items()}
    return Call("GET", f"{_path(run_id)}/history", HistoryResource, asked)


def list_samples(run_id: str, selection: SampleSelection, after: str = "", limit: int = LARGEST_PAGE) -> Call[Page[SampleResource]]:
    """Samples in the order of the log."""
    return Call("GET", f"{_path(run_id)}/samples", Page[SampleResource], {**selection, "after": after, "limit": limit})


def list_versions(run_id: str, after: int = -1, limit: int = LARGEST_PAGE) -> Call[Page[VersionResource]]:
    """Stored versions, oldest first."""
    return Call("GET", f"{_path(run_id)}/versions", Page[VersionResource], {"after": after, "limit": limit})


def list_workers(run_id: str = "", after: str = "", limit: int = LARGEST_PAGE) -> Call[Page[WorkerResource]]:
    """Live workers by name."""
    return Call("GET", "/v1/workers", Page[WorkerResource], {"run": run_id, "after": after, "limit": limit})


def get_lineage(run_id: str, limit: int) -> Call[LineageResource]:
    """A run's ancestors and children."""
    return Call("GET", f"{_path(run_id)}/lineage", LineageResource, {"limit": limit})


def get_version_lineage(run_id: str, version: int, params: Mapping[str, Any]) -> Call[VersionLineageResource]:
    """What made a version."""
    return Call("GET", f"{_path(run_id)}/versions/{version}/lineage", VersionLineageResource, params)


def get_export(run_id: str, version: int | None, *, adapters: bool) -> Call[ExportResource]:
    """The files of a version."""
    asked: Json = {"adapters": adapters} | ({} if version is None else {"version": version})
    return Call("GET", f"{_path(run_id)}/export", ExportResource, asked)


def post_run(spec: Json, idempotency_key: str) -> Call[RunResource]:
    """Submits a run. With the key, an interrupted request can be repeated without a second run."""
    return Call("POST", "/v1/runs", RunResource, body=spec, headers={"Idempotency-Key": idempotency_key}, seconds=SUBMIT_SECONDS)


def post_spec_check(spec: Json) -> Call[SpecCheckResource]:
    """Checks a spec."""
    return Call("POST", "/v1/spec-checks", SpecCheckResource, body=spec, seconds=SUBMIT_SECONDS)


def post_sign_in() -> Call[SignInResource]:
    """Makes a link for a browser."""
    return Call("POST", "/v1/sign-ins", SignInResource)


def events_path(run_id: str) -> str:
    """Of a run's events, also of their stream."""
    return f"{_path(run_id)}/events"


def _path(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"
