"""Submission of a run: everything is checked before the run is stored, and one response lists every fault."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from grpc.aio import AioRpcError
from starlette.requests import Request

from gradbus.control.condemned import CondemnedBlobs
from gradbus.control.runs import RunRecord
from gradbus.errors import SpecError, first_line
from gradbus.ids import digests_in, new_run_id
from gradbus.spec import RewardChange, RunSpec, refuse_unstorable
from gradbus.strict_json import collection_paused
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.fork import FORK, ForkOf
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.quotas.runs import RunQuota
from gradbus_gateway.runs.idempotency import IdempotencyKeys, IdempotencyRecord
from gradbus_gateway.runs.store import Run, RunStore

_SPEC: Final = {"$ref": "#/components/schemas/RunSpec"}  # the same as in a response, where every default is filled in
_FORK: Final = {
    "type": "object",
    "title": "Fork",
    "description": "The spec of a run with a version of it as the model; other fields replace that spec's.",
    "required": [FORK],
    "properties": {FORK: ForkOf.model_json_schema()},
}
_TOML: Final = {"type": "string", "description": "The same spec as TOML."}
_CONTENT: Final = {"application/json": {"schema": {"anyOf": [_SPEC, _FORK]}}, "application/toml": {"schema": _TOML}}
SPEC_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _CONTENT}}
"""How the OpenAPI document describes a submission's body."""

_BODIES_AT_A_TIME: Final = 1
"""A long TOML document takes half a second of the interpreter, which all requests share."""
_CAUSE_CHARACTERS: Final = 200
_NAME_CHARACTERS: Final = 80
_MAX_TOML_BYTES: Final = 256 << 10
_MAX_TOML_WORK: Final = 4_000_000
"""`tomllib` takes the square of a key's parts, and for each line the parts of its table's name: without a bound, minutes."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to create a run."""

    body: object
    """The run spec, as parsed."""
    key_id: str
    """API key of the caller."""
    idempotency_key: str | None


def parse_body(data: bytes, content_type: str) -> object:
    """The body parsed as JSON, or as TOML if its content type says so.

    Raises the problem 400, and SpecError for values that no service could store.
    """
    is_toml = content_type.startswith("application/toml")
    kind, parse = ("TOML", _parse_toml) if is_toml else ("JSON", _parse_json)
    try:
        body = parse(data)
    except (ValueError, RecursionError) as error:
        cause = first_line(error)[:_CAUSE_CHARACTERS]
        advice = f"send a run spec as a {kind} document" + ("" if is_toml else ", or as TOML with `Content-Type: application/toml`")
        raise ProblemError(400, "unreadable-body", f"the body is not {kind} ({cause}); {advice}") from None
    refuse_unstorable(body)
    return body


class RunIntake:
    """Creates runs from submissions."""

    def __init__(self, runs: RunStore, keys: IdempotencyKeys, quota: RunQuota, specs: SpecIntake, condemned: CondemnedBlobs) -> None:
        self._runs = runs
        self._keys = keys
        self._quota = quota
        self._specs = specs
        self._condemned = condemned
        self._bodies = CheckTurns(_BODIES_AT_A_TIME)

    async def read(self, request: Request, key_id: str) -> object:
        """The request's body, parsed in a thread. Raises as `parse_body` does, and the problem 503 if this gateway is too busy."""
        data, content_type = await request.body(), request.headers.get("content-type", "")
        async with self._bodies.turn(key_id):
            return await asyncio.to_thread(parse_body, data, content_type)

    async def submit(self, submission: Submission) -> Run:
        """The new run, or the run that an earlier request with the same idempotency key created.

        Raises SpecError with every fault, and the problems 403 beyond a quota and 422 if the key came with another body before.
        """
        body = hashlib.sha256(json.dumps(submission.body, sort_keys=True, default=str).encode()).hexdigest()
        key = hashlib.sha256(f"{submission.key_id}\n{submission.idempotency_key}".encode()).hexdigest()
        is_idempotent = submission.idempotency_key is not None
        try:
            self._quota.check(submission.key_id)
            spec = await self._accept(submission)
        except (ProblemError, SpecError):
            # A repeated request gets its run even if the files that it names are gone by now, or the quota is met.
            if is_idempotent and (run := await self._earlier_run(key, body)):
                return run
            raise
        record = RunRecord(run_id=new_run_id(), spec=spec, created_unix_ns=time.time_ns(), key_id=submission.key_id)
        return await self._create_once(record, key, body) if is_idempotent else await self._create(record)

    async def _accept(self, submission: Submission) -> RunSpec:
        """Checks the spec. A file that it names is not deleted before the run is stored, though no other run names it."""
        spec = await self._specs.accept(submission.body, submission.key_id)
        if await self._condemned.keep(digests_in(spec.model_dump_json().encode())):
            return await self._specs.accept(submission.body, submission.key_id)  # it may have been deleted since the check
        return spec

    async def _create(self, record: RunRecord) -> Run:
        """The stored run. Raises SpecError, and stores none, if its model is gone since the check; AioRpcError if nobody can tell."""
        run = await self._runs.create(record)
        if run.record is record:
            try:
                await self._specs.keep_model(record.spec)
            except (SpecError, AioRpcError):
                await self._runs.withdraw(record.run_id)
                raise
        return run

    async def _create_once(self, record: RunRecord, key: str, body: str) -> Run:
        """Of the requests with one idempotency key, the first decides the run id, even if it ended before its run was stored."""
        while True:
            mine = IdempotencyRecord(body, new_run_id())
            first = _with_body(await self._keys.claim(key, mine), body)
            run = await self._create(record.model_copy(update={"run_id": first.run_id, "idempotency_key": key}))
            if first is mine or await self._keys.get(key) is not None:
                return run
            await self._runs.withdraw(first.run_id)  # the first run was deleted after its id was read

    async def check(self, body: object, key_id: str) -> RunSpec:
        """The spec that a run of this submission would have. Raises SpecError with every fault."""
        return await self._specs.accept(body, key_id)

    async def check_scorer(self, spec: RunSpec, body: object, key_id: str) -> RewardChange:
        """The scorer that a run with this spec is to have from now on. Raises SpecError with every fault."""
        return await self._specs.accept_scorer(spec, body, key_id)

    async def _earlier_run(self, key: str, body: str) -> Run | None:
        record = await self._keys.get(key)
        return await self._runs.find(_with_body(record, body).run_id) if record else None


def _with_body(record: IdempotencyRecord, body: str) -> IdempotencyRecord:
    if record.body != body:
        detail = "this Idempotency-Key came with another body before; use a new key for a new run"
        raise ProblemError(422, "idempotency-key-reused", detail)
    return record


def _parse_json(data: bytes) -> object:
    with collection_paused():
        return json.loads(data, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Raises ValueError for a name that stands twice, as TOML's parser does: only one of the values would be read."""
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the name {name[:_NAME_CHARACTERS]!r} twice; leave one of the values out")
    return found


def _parse_toml(data: bytes) -> object:
    if len(data) > _MAX_TOML_BYTES:
        raise ValueError(f"it has more than {_MAX_TOML_BYTES} bytes, which JSON may have")
    text = data.decode()
    dots = [line.count(".") for line in text.split("\n")]
    if max(dots) * (len(dots) + sum(dots)) > _MAX_TOML_WORK:
        raise ValueError("a line has too many dots")
    return tomllib.loads(text)
