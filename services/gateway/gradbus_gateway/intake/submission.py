"""Submission of a run: everything is checked before the run is stored, and one response lists every fault."""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from dataclasses import dataclass

from gradbus.control.runs import RunRecord
from gradbus.errors import SpecError
from gradbus.ids import new_run_id
from gradbus.objects import ObjectStore
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.intake.spec_intake import SpecIntake
from gradbus_gateway.runs.idempotency import IdempotencyKeys, IdempotencyRecord
from gradbus_gateway.runs.store import Run, RunStore
from gradbus_gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to create a run."""

    body: object
    """The run spec, as parsed."""
    key_id: str
    """API key of the caller."""
    idempotency_key: str | None


def parse_body(data: bytes, content_type: str) -> object:
    """The body parsed as JSON, or as TOML if its content type says so. Raises the problem 400."""
    kind, parse = ("TOML", _parse_toml) if content_type.startswith("application/toml") else ("JSON", json.loads)
    try:
        return parse(data)
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, "unreadable-body", f"the body is not {kind} ({error}); send a run spec as a {kind} document") from None


class RunIntake:
    """Creates runs from submissions."""

    def __init__(self, runs: RunStore, keys: IdempotencyKeys, objects: ObjectStore, settings: GatewaySettings) -> None:
        self._runs = runs
        self._keys = keys
        self._specs = SpecIntake(objects, settings)

    async def submit(self, submission: Submission) -> Run:
        """The new run, or the run that an earlier request with the same idempotency key created.

        Raises SpecError with every fault, and the problem 422 if the key came with another body before.
        """
        body = hashlib.sha256(json.dumps(submission.body, sort_keys=True, default=str).encode()).hexdigest()
        key = hashlib.sha256(f"{submission.key_id}\n{submission.idempotency_key}".encode()).hexdigest()
        is_idempotent = submission.idempotency_key is not None
        try:
            spec = await self._specs.accept(submission.body)
        except SpecError:
            # A repeated request gets its run even if the files that it names are gone by now.
            if is_idempotent and (run := await self._earlier_run(key, body)):
                return run
            raise
        record = IdempotencyRecord(body, new_run_id())
        if is_idempotent:
            # The first record decides the run id: of two concurrent requests, or if the first ended before its run was stored.
            record = _with_body(await self._keys.claim(key, record), body)
        return await self._runs.create(RunRecord(run_id=record.run_id, spec=spec, created_unix_ns=time.time_ns(), key_id=submission.key_id))

    async def _earlier_run(self, key: str, body: str) -> Run | None:
        record = await self._keys.get(key)
        return await self._runs.find(_with_body(record, body).run_id) if record else None


def _with_body(record: IdempotencyRecord, body: str) -> IdempotencyRecord:
    if record.body != body:
        detail = "this Idempotency-Key came with another body before; use a new key for a new run"
        raise ProblemError(422, "idempotency-key-reused", detail)
    return record


def _parse_toml(data: bytes) -> object:
    return tomllib.loads(data.decode())
