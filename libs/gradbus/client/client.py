"""A synchronous client: one method a route, plus what takes several of them."""

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
from gradbus.client.upload import in_words_of, merged, with_uploads
from gradbus.control.runs import FINAL_STATES
from gradbus.errors import SpecError, StackError

Json = dict[str, Any]
_SUBMIT_SECONDS = 600.0  # a model from the hub is fetched before the answer
_QUIET_SECONDS = 60.0  # the gateway sends a heartbeat every 15 s
_RECONNECTS = 8


class Client:
    """Talks to one gateway. Methods raise ApiError for a refusal, SpecError for a wrong spec, StackError when nobody answers.

    A gateway that restarts is waited for (`patience`): every request here can be repeated without harm.
    """

    def __init__(self, url: str, key: str, patience: RetryPolicy | None = None) -> None:
        self.url = url.rstrip("/")
        self.patience = patience or RetryPolicy()
        # The key goes to this address alone: no proxy, no redirect.
        self._http = httpx2.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0, trust_env=False)

    @classmethod
    def discover(cls, state: Path | None = None, patience: RetryPolicy | None = None) -> Self:
        """The client of the gateway that GRADBUS_URL or the embedded stack's state folder names. Raises StackError if neither does."""
        return cls(*find_gateway(state), patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def submit(self, spec: Mapping[str, Any], base_dir: Path | None = None, idempotency_key: str | None = None) -> Json:
        """Submits a run; files it names below `base_dir` (default: here) are uploaded first, those already stored are not sent again."""
        folder = base_dir or Path.cwd()
        body, faults = with_uploads(spec, folder, self.upload)
        # With a key of its own a request that is cut off can be sent again without a second run.
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        try:
            return self._json("POST", "/v1/runs", json=body, headers=headers, timeout=_SUBMIT_SECONDS)
        except SpecError as error:
            raise SpecError(merged(faults, [in_words_of(spec, folder, fault) for fault in error.faults])) from None

    def runs(self, after: str = "", limit: int = 20) -> Json:
        """A page of runs, newest first."""
        return self._json("GET", "/v1/runs", params={"after": after, "limit": limit})

    def run(self, run_id: str) -> Json:
        """A run with its spec."""
        return self._json("GET", f"/v1/runs/{run_id}")

    def pause(self, run_id: str) -> Json:
        """Asks for a pause."""
        return self._json("POST", f"/v1/runs/{run_id}/pause")

    def resume(self, run_id: str) -> Json:
        """Ends a pause."""
        return self._json("POST", f"/v1/runs/{run_id}/resume")

    def cancel(self, run_id: str) -> Json:
        """Ends a run for good."""
        return self._json("POST", f"/v1/runs/{run_id}/cancel")

    def events(self, run_id: str, after: int = 0, limit: int = 100) -> Json:
        """A page of a run's history."""
        return self._json("GET", f"/v1/runs/{run_id}/events", params={"after": after, "limit": limit})

    def follow_events(self, run_id: str, after: int = 0) -> Iterator[Json]:
        """Events above `after` as they happen, until the run is over; connects again where it was cut off."""
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
                    raise StackError(f"lost the gateway at {self.url} ({error}); see `gradbus status`, the run itself may go on") from error
                time.sleep(min(0.1 * 2**failures, 5.0))

    def samples(self, run_id: str, **query: Any) -> Json:
        """A page of samples; `step`, `index`, `after` and `limit` narrow it."""
        return self._json("GET", f"/v1/runs/{run_id}/samples", params=query)

    def versions(self, run_id: str, after: int = -1, limit: int = 100) -> Json:
        """A page of the policy versions that are kept."""
        return self._json("GET", f"/v1/runs/{run_id}/versions", params={"after": after, "limit": limit})

    def sign_in_link(self, run_id: str = "") -> str:
        """A link that signs one browser in to the web UI, once, with this client's key; with `run_id` it leads to that run."""
        path: str = self._json("POST", "/v1/sign-ins")["path"]
        return f"{self.url}{path}" + (f"&run={run_id}" if run_id else "")

    def workers(self) -> Json:
        """Live workers."""
        return self._json("GET", "/v1/workers", params={"limit": 1000})

    def export(self, run_id: str, folder: Path, version: int | None = None, adapters: bool = False) -> Json:
        """Writes a version (default: the newest) into `folder` as a Hugging Face folder; returns what was written.

        Of a run that trained adapters: these added to the base model or, with `adapters`, alone, as a folder that peft loads.
        """
        asked = {"adapters": adapters} | ({} if version is None else {"version": version})
        plan = self._json("GET", f"/v1/runs/{run_id}/export", params=asked)
        if plan["merge"]:
            write_merged_export(plan, folder, self._download, self.patience)
        else:
            write_export(plan["files"], folder, self._download, self.patience)
        return plan

    def upload(self, path: Path, digest: str) -> None:
        """Stores the file, whose digest is known, unless it is there."""

        def send() -> None:
            with reached(self.url):
                if self._http.head(f"/v1/files/{digest}").status_code == httpx2.codes.OK:
                    return
                with path.open("rb") as file:
                    headers = {"Content-Type": "application/octet-stream"}
                    checked(self._http.post("/v1/files", content=file, headers=headers, timeout=_SUBMIT_SECONDS))

        self.patience.ask(send)

    def _download(self, digest: str) -> Iterator[bytes]:
        with reached(self.url), self._http.stream("GET", f"/v1/files/{digest}") as response:
            checked(response)
            yield from response.iter_bytes(1 << 20)

    def _json(self, method: str, path: str, **request: Any) -> Json:
        def send() -> Json:
            with reached(self.url):
                answer: Json = checked(self._http.request(method, path, **request)).json()
            return answer

        return self.patience.ask(send)
