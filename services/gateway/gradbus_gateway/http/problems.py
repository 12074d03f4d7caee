"""Every error as a problem document, `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus

import grpc
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from nats.errors import Error as NatsError
from nats.js.errors import APIError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from gradbus.errors import Fault, GradbusError, SpecError, StorageError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_TYPE = "urn:gradbus:problem:"


class ProblemError(GradbusError):
    """An error with its HTTP status, a stable `kind`, and a `detail` that ends with what to do next."""

    def __init__(self, status: int, kind: str, detail: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = errors


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
    for unreachable in (StorageError, NatsError, APIError, RedisError, TimeoutError, grpc.aio.AioRpcError):
        app.add_exception_handler(unreachable, _on_unreachable)
    app.add_exception_handler(Exception, _on_crash)


def problem(request: Request, error: ProblemError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """`error` as a response."""
    body = {
        "type": _TYPE + error.kind,
        "title": error.kind.replace("-", " ").capitalize(),
        "status": error.status,
        "detail": error.detail,
        "instance": request.url.path,
    }
    if error.errors:
        body["errors"] = list(error.errors)
    challenge = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    return JSONResponse(body, error.status, {**challenge, **(headers or {})}, media_type="application/problem+json")


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
    advice = {404: "no such path; see /openapi.json", 405: f"{request.method} is not served here; see /openapi.json"}
    return problem(request, ProblemError(error.status_code, kind, advice.get(error.status_code, str(error.detail))), error.headers)


async def _on_unreachable(request: Request, error: Exception) -> JSONResponse:
    _log.error("backend_unreachable", path=request.url.path, error=f"{type(error).__name__}: {error}")
    detail = "a service behind the gateway does not respond; try again, then see `gradbus status`"
    return problem(request, ProblemError(503, "unavailable", detail), {"Retry-After": "1"})


async def _on_crash(request: Request, error: Exception) -> JSONResponse:
    _log.error("request_crashed", path=request.url.path, exc_info=error)
    return problem(request, ProblemError(500, "internal-error", "the gateway failed; its log says why"))
