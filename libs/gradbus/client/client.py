"""A synchronous client: one method for each route, and a few that combine routes."""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from gradbus.client.answers import checked, reached, trusting
from gradbus.client.discovery import find_authority, find_gateway
from gradbus.client.export import Download, check_empty, write_export, write_merged_export
from gradbus.client.retries import RetryPolicy
from gradbus.client.upload import inline_sources, merged_faults, upload_local_files, with_local_names
from gradbus.control.runs import FINAL_STATES
from gradbus.errors import ApiError, SpecError, StackError
from gradbus.spec import refuse_unstorable

Json = dict[str, Any]
_SUBMIT_SECONDS = 600.0  # the gateway downloads a model from the hub before it answers
_QUIET_SECONDS = 60.0  # the gateway sends a heartbeat every 15 s
_RECONNECTS = 8
_LONGEST_PAUSE_SECONDS = 5.0
_LARGEST_PAGE = 1000
_EXPORTS = 5
"""Newest versions, each deleted while it was downloaded, before an export fails."""


class Client:
    """A client of one gateway. Methods raise ApiError for an error response, SpecError for an invalid spec, StackError without an answer,
    SettingsError for a gateway whose certificate is not trusted.

    Requests are retried (`retries`) while the gateway restarts; all of them are idempotent.
    """

    def __init__(self, url: str, key: str, retries: RetryPolicy | None = None, authority: Path | None = None) -> None:
        """`authority` is a file (PEM) of certificates to trust in place of the system's. Raises SettingsError when it cannot be read."""
        self.url = url.rstrip("/")
        self.retries = retries or RetryPolicy()
        trusted = trusting(authority) if authority else True
        # The key must go to this address only: no proxy, no redirect.
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=30.0, trust_env=False, verify=trusted)

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

    def submit(self, spec: Mapping[str, Any], base_dir: Path | None = None, idempotency_key: str | None = None) -> Json:
        """Submits a run. First uploads the files that it names below `base_dir` (default: the current folder), unless they are stored."""
        # With an idempotency key, an interrupted request can be repeated without a second run.
        return self._send_spec("/v1/runs", spec, base_dir, {"Idempotency-Key": idempotency_key or uuid.uuid4().hex})

    def check(self, spec: Mapping[str, Any], base_dir: Path | None = None) -> Json:
        """Has a spec checked as `submit` does, uploads included, and creates no run. Returns it with every default and digest."""
        return self._send_spec("/v1/spec-checks", spec, base_dir, {})

    def runs(self, after: str = "", limit: int = 20) -> Json:
        """A page of runs, newest first."""
        return self._json("GET", "/v1/runs", params={"after": after, "limit": limit})

    def all_runs(self) -> Iterator[Json]:
        """Every run, newest first, page by page."""
        after: str | None = ""
        while after is not None:
            page = self.runs(after, _LARGEST_PAGE)
            yield from page["data"]
            after = page["next_after"]

    def run(self, run_id: str) -> Json:
        """A run with its spec."""
        return self._json("GET", f"/v1/runs/{run_id}")

    def lineage(self, run_id: str, limit: int = 100) -> Json:
        """The runs that the model of a run comes from, and the newest runs that start from it."""
        return self._json("GET", f"/v1/runs/{run_id}/lineage", params={"limit": limit})

    def version_lineage(self, run_id: str, version: int, **query: Any) -> Json:
        """What made a version, and a page of the groups of its steps, selected by `step`, `after` and `limit`."""
        return self._json("GET", f"/v1/runs/{run_id}/versions/{version}/lineage", params=query)

    def reward(self, run_id: str) -> Json:
        """The scorers of a run, one after the other."""
        return self._json("GET", f"/v1/runs/{run_id}/reward")

    def change_reward(self, run_id: str, scorer: Mapping[str, Any], base_dir: Path | None = None) -> Json:
        """Gives a live run another scorer, whose files are below `base_dir`. Raises SpecError with every fault."""
        body = {"reward": copy.deepcopy(dict(scorer))}
        faults = inline_sources(body, base_dir or Path.cwd())
        try:
            return self._json("PUT", f"/v1/runs/{run_id}/reward", json=body["reward"], timeout=_SUBMIT_SECONDS)
        except SpecError as error:
            local = [replace(fault, path=fault.path.removeprefix("reward.")) for fault in faults]
            raise SpecError(merged_faults(local, error.faults)) from None

    def pause(self, run_id: str) -> Json:
        """Requests a pause."""
        return self._json("POST", f"/v1/runs/{run_id}/pause")

    def resume(self, run_id: str) -> Json:
        """Resumes a paused run."""
        return self._json("POST", f"/v1/runs/{run_id}/resume")

    def cancel(self, run_id: str) -> Json:
        """Cancels a run."""
        return self._json("POST", f"/v1/runs/{run_id}/cancel")

    def delete(self, run_id: str) -> None:
        """Deletes a run that has ended."""

        def send() -> None:
            with reached(self.url):
                checked(self._http.delete(f"/v1/runs/{run_id}"))

        self.retries.run(send)

    def events(self, run_id: str, after: int = 0, limit: int = 100) -> Json:
        """A page of a run's events."""
        return self._json("GET", f"/v1/runs/{run_id}/events", params={"after": after, "limit": limit})

    def all_events(self, run_id: str, after: int = 0) -> Iterator[Json]:
        """Yields the events after the id `after`, oldest first, page by page, up to the newest one."""
        while True:
            page = self.events(run_id, after, 1000)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = int(page["next_after"])

    def follow_events(self, run_id: str, after: int = 0) -> Iterator[Json]:
        """Yields events after the id `after` as they happen, until the run ends; reconnects after an interruption."""
        failures = early_ends = 0
        while True:
            try:
                with self._http.sse(
                    f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": str(after)}, timeout=httpx2.Timeout(10.0, read=_QUIET_SECONDS)
                ) as source:
                    checked(source.response)
                    for message in source:
                        event = message.json()
                        assert isinstance(event, dict)  # noqa: S101 - the gateway's own format
                        after, failures, early_ends = event["id"], 0, 0
                        yield event
                    if self.run(run_id)["state"] in FINAL_STATES:
                        break
                early_ends += 1
                time.sleep(_pause(early_ends))
            except (httpx2.TransportError, ApiError, StackError) as error:
                asked = error.retry_after if isinstance(error, ApiError) else 0.0
                if asked is None:
                    raise
                failures += 1
                if failures > _RECONNECTS:
                    raise StackError(
                        f"lost the connection to the gateway at {self.url} ({error}); see `gradbus status`, the run itself may go on"
                    ) from error
                time.sleep(max(_pause(failures), asked))
        yield from self.all_events(run_id, after)  # a gateway that stopped, or found this client too slow, closed the stream before its end

    def samples(self, run_id: str, **query: Any) -> Json:
        """A page of samples, selected by `step`, `index`, `after` and `limit`."""
        return self._json("GET", f"/v1/runs/{run_id}/samples", params=query)

    def versions(self, run_id: str, after: int = -1, limit: int = 100) -> Json:
        """A page of the stored policy versions."""
        return self._json("GET", f"/v1/runs/{run_id}/versions", params={"after": after, "limit": limit})

    def sign_in_link(self, run_id: str = "") -> str:
        """A link that signs one browser in, once, with this client's key; with `run_id` it opens that run."""
        path: str = self._json("POST", "/v1/sign-ins")["path"]
        return f"{self.url}{path}" + (f"&run={run_id}" if run_id else "")

    def is_ready(self) -> bool:
        """Whether the gateway answers and is ready. Does not wait for it."""
        try:
            return self._http.get("/readyz").is_success
        except httpx2.TransportError:
            return False

    def workers(self) -> Json:
        """The live workers."""
        return self._json("GET", "/v1/workers", params={"limit": 1000})

    def export(self, run_id: str, folder: Path, version: int | None = None, *, adapters: bool = False, overwrite: bool = False) -> Json:
        """Writes a version (default: the newest) into `folder` as a Hugging Face model; returns the export's plan.

        For a LoRA run the adapters are merged into the base model or, with `adapters`, written alone as a folder that peft loads.
        If the run deletes the newest version meanwhile, the export begins again with the one that is newest then. Raises StackError for a
        folder that is not empty, unless `overwrite`.
        """
        if not overwrite:
            check_empty(folder)
        asked = {"adapters": adapters} | ({} if version is None else {"version": version})
        for attempt in range(1, _EXPORTS + 1):
            plan = self._json("GET", f"/v1/runs/{run_id}/export", params=asked)
            try:
                (write_merged_export if plan["merge"] else _write_files)(plan, folder, self._download, self.retries)
            except ApiError as error:
                if error.status != httpx2.codes.NOT_FOUND or version is not None or attempt == _EXPORTS:
                    raise
                continue
            break
        return plan

    def upload(self, path: Path, digest: str) -> None:
        """Uploads the file with this digest unless the gateway has it."""

        def send() -> None:
            with reached(self.url):
                if self._http.head(f"/v1/files/{digest}").status_code == httpx2.codes.OK:
                    return
                with path.open("rb") as file:
                    headers = {"Content-Type": "application/octet-stream"}
                    checked(self._http.post("/v1/files", content=file, headers=headers, timeout=_SUBMIT_SECONDS))

        self.retries.run(send)

    def _download(self, digest: str) -> Iterator[bytes]:
        with reached(self.url), self._http.stream("GET", f"/v1/files/{digest}") as response:
            checked(response)
            yield from response.iter_bytes(1 << 20)

    def _send_spec(self, path: str, spec: Mapping[str, Any], base_dir: Path | None, headers: dict[str, str]) -> Json:
        refuse_unstorable(spec)
        folder = base_dir or Path.cwd()
        body, faults = upload_local_files(spec, folder, self.upload)
        try:
            return self._json("POST", path, json=body, headers=headers, timeout=_SUBMIT_SECONDS)
        except SpecError as error:
            raise SpecError(merged_faults(faults, [with_local_names(spec, folder, fault) for fault in error.faults])) from None

    def _json(self, method: str, path: str, **request: Any) -> Json:
        def send() -> Json:
            with reached(self.url):
                answer: Json = checked(self._http.request(method, path, **request)).json()
            return answer

        return self.retries.run(send)


def _write_files(plan: Json, folder: Path, download: Download, retries: RetryPolicy) -> None:
    write_export(plan["files"], folder, download, retries)


def _pause(attempt: int) -> float:
    """Seconds before a stream is opened again."""
    return min(0.1 * 2.0 ** min(attempt, 16), _LONGEST_PAUSE_SECONDS)
