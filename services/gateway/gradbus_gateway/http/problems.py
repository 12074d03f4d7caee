"""Every error as a problem document, `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus

import grpc
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from nats.errors import Error as NatsError
from nats.js.errors import APIError
from pydantic import BaseModel, Field
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gradbus.errors import DiskError, Fault, GradbusError, ObjectMissingError, SpecError, StorageError
from gradbus.telemetry import get_logger
from gradbus_gateway.http.methods import allowed_methods

_log = get_logger(__name__)
_TYPE = "urn:gradbus:problem:"
MEDIA_TYPE = "application/problem+json"
_DISK_SECONDS = 30
"""When to try again: somebody makes room meanwhile."""


class ProblemDocument(BaseModel):
    """The body of every error (RFC 9457)."""

    type: str = Field(description="A stable name of the kind of problem: `urn:gradbus:problem:<kind>`.")
    title: str
    status: int
    detail: str = Field(description="What is wrong, and what to do next.")
    instance: str = Field(description="Path of the request.")
    errors: list[dict[str, str]] | None = Field(None, description="One entry for each fault: its `path` and `message`, and more.")


class ProblemError(GradbusError):
    """An error with its HTTP status, a stable `kind`, and a `detail` that ends with what to do next. `retry_after` is in seconds."""

    def __init__(
        self, status: int, kind: str, detail: str, errors: Sequence[Mapping[str, str]] = (), retry_after: int | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = errors
        self.retry_after = retry_after


def no_such_run(run_id: str) -> ProblemError:
    """The problem for an id that names no run."""
    return ProblemError(404, "no-such-run", f"there is no run {run_id!r}; GET /v1/runs lists them")


def unreadable_run(reason: str) -> ProblemError:
    """The problem for a run whose stored record cannot be read."""
    return ProblemError(500, "unreadable-run", reason)


def register(app: FastAPI) -> None:
    """Makes `app` respond to every error with a problem document."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(SpecError, _on_spec)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    # A blob that was deleted while it was read: the next attempt says which one.
    for unreachable in (StorageError, ObjectMissingError, NatsError, APIError, RedisError, TimeoutError, grpc.aio.AioRpcError):
        app.add_exception_handler(unreachable, _on_unreachable)
    app.add_exception_handler(DiskError, _on_disk)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_crash)


def problem(request: Request, error: ProblemError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """`error` as a response."""
    body = ProblemDocument(
        type=_TYPE + error.kind,
        title=error.kind.replace("-", " ").capitalize(),
        status=error.status,
        detail=error.detail,
        instance=request.url.path,
        errors=[dict(entry) for entry in error.errors] or None,
    )
    own = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if error.retry_after is not None:
        own["Retry-After"] = str(error.retry_after)
    content = body.model_dump(exclude_none=True)
    return JSONResponse(content, error.status, {**own, **(headers or {})}, media_type=MEDIA_TYPE)


async def _on_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)  # noqa: S101 - the class that it is registered for
    return problem(request, error)


async def _on_spec(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SpecError)  # noqa: S101
    return problem(request, invalid_spec(error.faults))


def invalid_spec(faults: Sequence[Fault]) -> ProblemError:
    """One problem that lists every fault of a spec."""
    errors = [{key: value for key, value in asdict(fault).items() if value} for fault in faults]
    return ProblemError(422, "invalid-spec", f"the run spec has {len(faults)} fault(s); fix each and submit again", errors)


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    errors = [
        {"path": ".".join(str(part) for part in item["loc"]), "message": str(item["msg"]), "given": repr(item.get("input"))[:80]}
        for item in error.errors()
    ]
    return problem(request, ProblemError(422, "invalid-request", "parameters of the request are wrong; see `errors`", errors))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    headers = dict(error.headers or {})
    advice = {404: "no such path; see /openapi.json"}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = allowed_methods(request.scope)  # not only those of the first route that has the path
        advice[405] = f"{request.method} is not served here, but {headers['Allow']}; see /openapi.json"
    return problem(request, ProblemError(error.status_code, kind, advice.get(error.status_code, str(error.detail))), headers)


async def _on_unreachable(request: Request, error: Exception) -> JSONResponse:
    _log.error("backend_unreachable", path=request.url.path, error=f"{type(error).__name__}: {error}")
    detail = "a service behind the gateway does not respond; try again, then see `gradbus status`"
    return problem(request, ProblemError(503, "unavailable", detail, retry_after=1))


async def _on_disk(request: Request, error: Exception) -> JSONResponse:
    _log.error("disk_unwritable", path=request.url.path, error=str(error))
    return problem(request, ProblemError(503, "disk-unwritable", str(error), retry_after=_DISK_SECONDS))


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it


async def _on_crash(request: Request, error: Exception) -> JSONResponse:
    _log.error("request_crashed", path=request.url.path, exc_info=error)
    return problem(request, ProblemError(500, "internal-error", "the gateway failed; its log says why"))
