"""The synchronous client. What takes several requests is in `steps`; `AsyncClient` has the same methods."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from gradbus.client import calls, steps
from gradbus.client.answers import checked, reached, trusting
from gradbus.client.calls import Action, AnnotationChanges, Call, HistoryPart, SampleSelection
from gradbus.client.discovery import find_authority, find_gateway
from gradbus.client.export import check_empty, write_export
from gradbus.client.retries import RetryPolicy
from gradbus.client.steps import Driven, Steps
from gradbus.client.stream import STREAM_TIMEOUT, Following, StreamError
from gradbus.client.submission import SpecSource, change_scorer, prepare
from gradbus.control.runs import FINAL_STATES
from gradbus.errors import GradbusError, NotFoundError
from gradbus.resources.history import HistoryResource
from gradbus.resources.lineage import LineageResource
from gradbus.resources.page import Page
from gradbus.resources.reward import RewardResource
from gradbus.resources.runs import EventResource, RunResource, RunSummary
from gradbus.resources.samples import SampleResource
from gradbus.resources.spec_checks import SpecCheckResource
from gradbus.resources.version_lineage import VersionLineageResource
from gradbus.resources.versions import ExportResource, VersionResource
from gradbus.resources.workers import WorkerResource

Result = TypeVar("Result")
Item = TypeVar("Item")
_EXPORTS = 5
"""Newest versions, each deleted while it was downloaded, before an export fails."""


class Client:
    """A client of one gateway. A run goes by its id or its beginning, its name, or `last`.

    Methods raise ApiError for an error response (of its subclasses AuthenticationError, PermissionDeniedError, NotFoundError,
    ConflictError, RateLimitError), SpecError for an invalid spec, RunNameError for a run that is not found, StackError without an answer,
    AnswerError for an answer of another release, SettingsError for a gateway whose certificate is not trusted.

    Requests are retried (`retries`) while the gateway restarts; all of them are idempotent.
    """

    def __init__(self, url: str, key: str, retries: RetryPolicy | None = None, authority: Path | None = None) -> None:
        """`authority` is a file (PEM) of certificates to trust in place of the system's. Raises SettingsError when it cannot be read."""
        self.url = url.rstrip("/")
        self.retries = retries or RetryPolicy()
        # The key must go to this address only: no proxy, no redirect.
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=30.0, trust_env=False, verify=trusting(url, authority))

    @classmethod
    def discover(cls, state: Path | None = None, retries: RetryPolicy | None = None) -> Self:
        """A client of the gateway named by GRADBUS_URL or by the embedded stack's state folder. Raises StackError if there is neither.

        Trusts the certificates in the file GRADBUS_CA if it is set.
        """
        return cls(*find_gateway(state), retries, find_authority())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def submit(self, spec: SpecSource, base_dir: Path | None = None, idempotency_key: str | None = None) -> RunResource:
        """Submits a run: a model, a dict or the path of a TOML file.

        First uploads the files that it names below `base_dir` (default: the folder of the TOML file, else the current one), unless they
        are stored. A repeated `idempotency_key` with the same spec returns the same run.
        """
        key = idempotency_key or uuid.uuid4().hex
        return self._run(prepare(spec, base_dir, self.upload).send(lambda body: calls.post_run(body, key)))

    def check(self, spec: SpecSource, base_dir: Path | None = None) -> SpecCheckResource:
        """Has a spec checked as `submit` does, uploads included, and creates no run. Returns it with every default and digest."""
        return self._run(prepare(spec, base_dir, self.upload).send(calls.post_spec_check))

    def runs(self, tags: Sequence[str] = ()) -> Iterator[RunSummary]:
        """Every run that has all `tags`, newest first, page by page."""
        return self._items(calls.list_runs(tags=tags))

    def runs_page(self, after: str = "", limit: int = 20, tags: Sequence[str] = ()) -> Page[RunSummary]:
        """A page of runs that have all `tags`, newest first."""
        return self._send(calls.list_runs(after, limit, tags))

    def find(self, run: str) -> RunSummary:
        """The run with this id or name."""
        return self._run(steps.find_run(run))

    def run(self, run: str) -> RunResource:
        """A run with its spec."""
        return self._of(run, calls.get_run)

    def wait(self, run: str, seconds: float | None = None, poll_seconds: float = 1.0) -> RunResource:
        """The run, once it has ended: `state` is `succeeded`, `failed` or `cancelled`. Raises TimeoutError if it has not in time."""
        return self._run(steps.wait(run, seconds, poll_seconds))

    def pause(self, run: str) -> RunResource:
        """Requests a pause."""
        return self._act(run, "pause")

    def resume(self, run: str) -> RunResource:
        """Resumes a paused run."""
        return self._act(run, "resume")

    def cancel(self, run: str) -> RunResource:
        """Cancels a run."""
        return self._act(run, "cancel")

    def annotate(self, run: str, **changes: Unpack[AnnotationChanges]) -> RunResource:
        """Changes the tags and the note of a run, in any state."""
        return self._of(run, lambda run_id: calls.annotate(run_id, changes))

    def reward(self, run: str) -> RewardResource:
        """The scorers of a run, one after the other."""
        return self._of(run, calls.get_reward)

    def change_reward(self, run: str, scorer: Mapping[str, Any], base_dir: Path | None = None) -> RewardResource:
        """Gives a live run another scorer, as in `[reward]`, from the next group on that is not dispatched, or from `from_group`.

        Its files are below `base_dir` (default: the current folder).
        """
        return self._run(change_scorer(run, scorer, base_dir or Path.cwd()))

    def delete(self, run: str) -> None:
        """Deletes a run that has ended."""
        self._of(run, calls.delete)

    def events(self, run: str, after: int = 0) -> Iterator[EventResource]:
        """The events after the id `after`, oldest first, page by page, up to the newest one."""
        return self._items_of(run, lambda run_id: calls.list_events(run_id, after))

    def events_page(self, run: str, after: int = 0, limit: int = 100) -> Page[EventResource]:
        """A page of events, oldest first."""
        return self._of(run, lambda run_id: calls.list_events(run_id, after, limit))

    def history(self, run: str, seconds: float | None = None, **part: Unpack[HistoryPart]) -> HistoryResource:
        """Metrics and evaluations as columns of at most `points` buckets of steps, beside the first step and the newest 50.

        Waits until the gateway has read all events of a long run. Raises TimeoutError if it has not after `seconds`.
        """
        return self._run(steps.history(run, part, seconds))

    def stream(self, run: str, after: int = 0) -> Iterator[EventResource]:
        """The events after the id `after`, those that come included, until the run ends. Reconnects, and goes on after its newest event."""
        run_id = self._run(steps.find_id(run))
        following = Following(self.url, after)
        while True:
            try:
                yield from self._streamed(run_id, following)
                if self.run(run_id).state in FINAL_STATES:
                    break
                pause = following.ended()
            except StreamError as error:
                pause = following.failed(error)
            time.sleep(pause)
        # A gateway that stopped, or found this client too slow, closed the stream before its end.
        yield from self.events(run_id, following.after)

    def samples(self, run: str, after: str = "", **selection: Unpack[SampleSelection]) -> Iterator[SampleResource]:
        """The selected samples in the order in which their groups entered the log, page by page."""
        return self._items_of(run, lambda run_id: calls.list_samples(run_id, selection, after))

    def samples_page(self, run: str, after: str = "", limit: int = 20, **selection: Unpack[SampleSelection]) -> Page[SampleResource]:
        """A page of the selected samples."""
        return self._of(run, lambda run_id: calls.list_samples(run_id, selection, after, limit))

    def versions(self, run: str, after: int = -1) -> Iterator[VersionResource]:
        """The stored policy versions after this one, oldest first, page by page."""
        return self._items_of(run, lambda run_id: calls.list_versions(run_id, after))

    def versions_page(self, run: str, after: int = -1, limit: int = 100) -> Page[VersionResource]:
        """A page of stored policy versions, oldest first."""
        return self._of(run, lambda run_id: calls.list_versions(run_id, after, limit))

    def workers(self, run: str = "") -> Iterator[WorkerResource]:
        """The live workers, or only those that serve a run."""
        return self._items_of(run, calls.list_workers) if run else self._items(calls.list_workers())

    def lineage(self, run: str, limit: int = 100) -> LineageResource:
        """The runs that the model of a run comes from, and the newest runs that start from it."""
        return self._of(run, lambda run_id: calls.get_lineage(run_id, limit))

    def version_lineage(self, run: str, version: int, **query: int) -> VersionLineageResource:
        """What made a version, and a page of the groups of its steps, selected by `step`, `after` and `limit`."""
        return self._of(run, lambda run_id: calls.get_version_lineage(run_id, version, query))

    def sign_in_link(self, run: str = "") -> str:
        """A link that signs one browser in, once, with this client's key; with `run` it opens that run."""
        opened = f"&run={self._run(steps.find_id(run))}" if run else ""
        return f"{self.url}{self._send(calls.post_sign_in()).path}{opened}"

    def is_ready(self) -> bool:
        """Whether the gateway answers and is ready. Does not wait for it."""
        try:
            return self._http.get("/readyz").is_success
        except httpx2.TransportError:
            return False

    def export(
        self, run: str, folder: Path | str, version: int | None = None, *, adapters: bool = False, overwrite: bool = False
    ) -> ExportResource:
        """Writes a version (default: the newest) into `folder` as a Hugging Face model; returns the export's plan.

        For a LoRA run the adapters are merged into the base model or, with `adapters`, written alone as a folder that peft loads.
        If the run deletes the newest version meanwhile, the export begins again with the one that is newest then. Raises StackError for a
        folder that is not empty, unless `overwrite`.
        """
        folder = Path(folder)
        if not overwrite:
            check_empty(folder)
        run_id, attempt = self._run(steps.find_id(run)), 1
        while True:
            plan = self._send(calls.get_export(run_id, version, adapters=adapters))
            try:
                write_export(plan, folder, self._download, self.retries)
            except NotFoundError:
                if version is not None or attempt == _EXPORTS:
                    raise
                attempt += 1
            else:
                return plan

    def upload(self, path: Path, digest: str) -> None:
        """Uploads the file with this digest unless the gateway has it."""

        def send() -> None:
            with reached(self.url):
                if self._http.head(f"/v1/files/{digest}").status_code == httpx2.codes.OK:
                    return
                with path.open("rb") as file:
                    headers = {"Content-Type": "application/octet-stream"}
                    checked(self._http.post("/v1/files", content=file, headers=headers, timeout=calls.SUBMIT_SECONDS))

        self.retries.run(send)

    def _download(self, digest: str) -> Iterator[bytes]:
        with reached(self.url), self._http.stream("GET", f"/v1/files/{digest}") as response:
            checked(response)
            yield from response.iter_bytes(1 << 20)

    def _streamed(self, run_id: str, following: Following) -> Iterator[EventResource]:
        with self._http.sse(calls.events_path(run_id), headers=following.headers, timeout=STREAM_TIMEOUT) as source:
            checked(source.response)
            yield from map(following.seen, source)

    def _act(self, run: str, action: Action) -> RunResource:
        return self._of(run, lambda run_id: calls.act(run_id, action))

    def _of(self, run: str, call: Callable[[str], Call[Result]]) -> Result:
        return self._run(steps.of_run(run, call))

    def _items_of(self, run: str, call: Callable[[str], Call[Page[Item]]]) -> Iterator[Item]:
        yield from self._items(call(self._run(steps.find_id(run))))

    def _items(self, call: Call[Page[Item]]) -> Iterator[Item]:
        following: Call[Page[Item]] | None = call
        while following is not None:
            page = self._send(following)
            yield from page.data
            following = steps.next_page(following, page)

    def _run(self, work: Steps[Result]) -> Result:
        """Does the steps one after the other; their errors are raised in them."""
        driven = Driven(work)
        while (step := driven.next()) is not None:
            if isinstance(step, float):
                time.sleep(step)
                continue
            try:
                driven.answer = self._send(step)
            except GradbusError as error:
                driven.error = error
        return driven.result

    def _send(self, call: Call[Result]) -> Result:
        def once() -> Result:
            with reached(self.url):
                return call.read(self._http.request(**call.request))

        return self.retries.run(once)
