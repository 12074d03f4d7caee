"""Turns the gateway's error responses into exceptions."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx2

from gradbus.errors import Fault, SettingsError, SpecError, StackError, api_error

_INVALID_SPEC = "urn:gradbus:problem:invalid-spec"
_WRONG_KEY = "the gateway does not know this key; check GRADBUS_KEY, or secrets/api-key in the state folder"
_UNAVAILABLE = "the gateway, or a proxy before it, cannot answer now; try again in a moment, then see `gradbus status`"
_TRY_AGAIN = (httpx2.codes.BAD_GATEWAY, httpx2.codes.SERVICE_UNAVAILABLE, httpx2.codes.GATEWAY_TIMEOUT)
"""Of the gateway, or of a proxy that does not reach it: every request is idempotent."""
_FAULT_FIELDS = ("path", "message", "given", "allowed", "nearest")


def checked(response: httpx2.Response) -> httpx2.Response:
    """Returns a successful response.

    Raises SpecError for an invalid spec, StackError when a service behind the gateway is unavailable, ApiError for any other error.
    """
    if response.is_success:
        return response
    response.read()
    problem = _problem(response)
    if response.status_code in _TRY_AGAIN:
        raise StackError(str(problem["detail"]) if {"type", "detail"} <= problem.keys() else _UNAVAILABLE)
    if problem.get("type") == _INVALID_SPEC:
        faults = cast("list[dict[str, str]]", problem.get("errors", []))
        raise SpecError([Fault(**{name: fault.get(name, "") for name in _FAULT_FIELDS}) for fault in faults])
    if response.status_code == httpx2.codes.UNAUTHORIZED:
        problem["detail"] = _WRONG_KEY
    raise api_error(response.status_code, problem, _retry_after(response))


def _problem(response: httpx2.Response) -> dict[str, Any]:
    """The gateway's problem document, or what a proxy's answer says."""
    try:
        body = response.json()
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"title": response.reason_phrase, "detail": response.text[:200]}


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds after which a refused request may come again; None if it would be refused again."""
    given = response.headers.get("retry-after", "")
    return float(given) if response.status_code == httpx2.codes.TOO_MANY_REQUESTS and given.isdecimal() else None


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Turns a transport error into StackError, or into SettingsError if to repeat the request cannot help."""
    try:
        yield
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            advice = "set GRADBUS_CA to the file of its authority's certificate"
            raise SettingsError(f"the certificate of the gateway at {url} is not trusted ({reason}); {advice}") from error
        if "WRONG_VERSION_NUMBER" in reason or "record layer failure" in reason:
            raise SettingsError(f"the gateway at {url} does not speak HTTPS; write http:// in its address") from error
        raise StackError(f"the gateway at {url} does not answer ({reason}); see `gradbus status`, or start it with `gradbus up`") from error


def trusting(url: str, authority: Path | None) -> ssl.SSLContext | bool:
    """Trusts the certificates in the file (PEM) alone, and without a file the system's. Raises SettingsError when it cannot be read.

    An address without TLS needs none, and the system's take 30 ms to read.
    """
    if authority is None:
        return url.lower().startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cannot read certificates from {authority} ({error}); set GRADBUS_CA to a file of PEM certificates") from None
