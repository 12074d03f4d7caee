"""Turns the gateway's error responses into exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx2

from gradbus.errors import ApiError, Fault, SpecError, StackError

_INVALID_SPEC = "urn:gradbus:problem:invalid-spec"
_WRONG_KEY = "the gateway does not know this key; check GRADBUS_KEY, or secrets/api-key in the state folder"
_FAULT_FIELDS = ("path", "message", "given", "allowed", "nearest")


def checked(response: httpx2.Response) -> httpx2.Response:
    """Returns a successful response.

    Raises SpecError for an invalid spec, StackError when a service behind the gateway is unavailable, ApiError for any other error.
    """
    if response.is_success:
        return response
    response.read()
    if response.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
        raise StackError("a service behind the gateway does not answer; try again in a moment, then see `gradbus status`")
    try:
        body = response.json()
    except ValueError:
        body = None
    problem: dict[str, Any] = body if isinstance(body, dict) else {"title": response.reason_phrase, "detail": response.text[:200]}
    if problem.get("type") == _INVALID_SPEC:
        faults = cast("list[dict[str, str]]", problem.get("errors", []))
        raise SpecError([Fault(**{name: fault.get(name, "") for name in _FAULT_FIELDS}) for fault in faults])
    if response.status_code == httpx2.codes.UNAUTHORIZED:
        problem["detail"] = _WRONG_KEY
    raise ApiError(response.status_code, problem)


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Turns a transport error into StackError."""
    try:
        yield
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        raise StackError(f"the gateway at {url} does not answer ({reason}); see `gradbus status`, or start it with `gradbus up`") from error
