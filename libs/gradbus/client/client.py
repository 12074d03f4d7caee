"""A synchronous client: one method for each route, and a few that combine routes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from gradbus.client.answers import checked, reached
from gradbus.client.discovery import find_gateway
from gradbus.client.export import write_export, write_merged_export
from gradbus.client.retries import RetryPolicy
from gradbus.client.upload import merged_faults, upload_local_files, with_local_names
from gradbus.control.runs import FINAL_STATES
from gradbus.errors import SpecError, StackError

Json = dict[str, Any]
_SUBMIT_SECONDS = 600.0  # the gateway downloads a model from the hub before it answers
_QUIET_SECONDS = 60.0  # the gateway sends a heartbeat every 15 s
_RECONNECTS = 8


class Client:
    """A client of one gateway. Methods raise ApiError for an error response, SpecError for an invalid spec, StackError without an answer.

    Requests are retried (`retries`) while the gateway restarts; all of them are idempotent.
    """

    def __init__(self, url: str, key: str, retries: RetryPolicy | None = None) -> None:
        self.url = url.rstrip("/")
        self.retries = retries or RetryPolicy()
        # The key must go to this address only: no proxy, no redirect.
        self._http = httpx2.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0, trust_env=False)

    @classmethod
    def discover(cls, state: Path | None = None, retries: RetryPolicy | None = None) -> Self:
        """A client of the gateway named by GRADBUS_URL or by the embedded stack's state folder. Raises StackError if there is neither."""
        return cls(*find_gateway(state), retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def submit(self, spec: Mapping[str, Any], base_dir: Path | None = None, idempotency_key: str | None = None) -> Json:
        """Submits a run. First uploads the files that it names below `base_dir` (default: the current folder), unless they are stored."""
        folder = base_dir or Path.cwd()
        body, faults = upload_local_files(spec, folder, self.upload)
        # With an idempotency key, an interrupted request can be repeated without a second run.
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        try:
            return self._json("POST", "/v1/runs", json=body, headers=headers, timeout=_SUBMIT_SECONDS)
        except SpecError as error:
            raise SpecError(merged_faults(faults, [with_local_names(spec, folder, fault) for fault in error.faults])) from None

    def runs(self, after: str = "", limit: int = 20) -> Json:
        """A page of runs, newest first."""
        return self._json("GET", "/v1/runs", params={"after": after, "limit": limit})

    def run(self, run_id: str) -> Json:
        """A run with its spec."""
        return self._json("GET", f"/v1/runs/{run_id}")

    def pause(self, run_id: str) -> Json:
        """Requests a pause."""
        return self._json("POST", f"/v1/runs/{run_id}/pause")

    def resume(self, run_id: str) -> Json:
        """Resumes a paused run."""
        return self._json("POST", f"/v1/runs/{run_id}/resume")

    def cancel(self, run_id: str) -> Json:
        """Cancels a run."""
        return self._json("POST", f"/v1/runs/{run_id}/cancel")

    def events(self, run_id: str, after: int = 0, limit: int = 100) -> Json:
        """A page of a run's events."""
        return self._json("GET", f"/v1/runs/{run_id}/events", params={"after": after, "limit": limit})

    def follow_events(self, run_id: str, after: int = 0) -> Iterator[Json]:
        """Yields events after the id `after` as they happen, until the run ends; reconnects after an interruption."""
        failures = 0
        while True:
            try:
                with self._http.sse(
                    f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": str(after)}, timeout=httpx2.Timeout(10.0, read=_QUIET_SECONDS)
                ) as source:
                    checked(source.response)
                    for message in source:
                        event = message.json()
                        assert isinstance(event, dict)  # noqa: S101 - the gateway's own format
                        after, failures = event["id"], 0
                        yield event
                    if self.run(run_id)["state"] in FINAL_STATES:
                        return
            except (httpx2.TransportError, StackError) as error:
                failures += 1
                if failures > _RECONNECTS:
                    raise StackError(
                        f"lost the connection to the gateway at {self.url} ({error}); see `gradbus status`, the run itself may go on"
                    ) from error
                time.sleep(min(0.1 * 2**failures, 5.0))

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

    def workers(self) -> Json:
        """The live workers."""
        return self._json("GET", "/v1/workers", params={"limit": 1000})

    def export(self, run_id: str, folder: Path, version: int | None = None, adapters: bool = False) -> Json:
        """Writes a version (default: the newest) into `folder` as a Hugging Face model; returns the export's plan.

        For a LoRA run the adapters are merged into the base model or, with `adapters`, written alone as a folder that peft loads.
        """
        asked = {"adapters": adapters} | ({} if version is None else {"version": version})
        plan = self._json("GET", f"/v1/runs/{run_id}/export", params=asked)
        if plan["merge"]:
            write_merged_export(plan, folder, self._download, self.retries)
        else:
            write_export(plan["files"], folder, self._download, self.retries)
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

    def _json(self, method: str, path: str, **request: Any) -> Json:
        def send() -> Json:
            with reached(self.url):
                answer: Json = checked(self._http.request(method, path, **request)).json()
            return answer

        return self.retries.run(send)
