"""Who may do what. Every route under /v1 needs a key or a session of the page; each router names the scope besides."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Request, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security import SecurityScopes
from fastapi.security.base import SecurityBase

from gradbus.access.api_keys import ApiKeyRecord
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.routes.dependencies import Gateway, gateway_of

_UNCHANGING: Final = frozenset({"GET", "HEAD"})
_FOREIGN: Final = frozenset({"cross-site", "same-site"})


class _Authentication(SecurityBase):
    """One dependency and none of its own: every request solves it."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="`Authorization: Bearer <id>.<secret>`")
        self.scheme_name = "ApiKey"

    async def __call__(self, request: Request, wanted: SecurityScopes) -> ApiKeyRecord:
        """The caller's key, shown or held by the caller's session. 401 without a valid one, 403 when it lacks a scope."""
        gateway = gateway_of(request)
        given = request.headers.get("authorization")
        record = await _session_key(request, gateway) if given is None else _shown_key(given, gateway)
        if record is None:
            detail = "the API key is missing or wrong; send `Authorization: Bearer <id>.<secret>`, or sign in with `gradbus open`"
            raise ProblemError(401, "unauthorized", detail)
        missing = [scope for scope in wanted.scopes if not record.allows(scope)]
        if missing:
            raise ProblemError(403, "forbidden", f"key {record.id} lacks the scope {', '.join(missing)}; use a key that has it")
        return record


_authenticate = _Authentication()


async def by_key(request: Request, record: Annotated[ApiKeyRecord, Security(_authenticate)]) -> ApiKeyRecord:
    """The caller's key, which was shown itself: a session must not make itself another one."""
    if "authorization" not in request.headers:
        raise ProblemError(403, "forbidden", "a session cannot make sign-in links; run `gradbus open` again")
    return record


def cookie_name(request: Request) -> str:
    """Cookies are shared by all ports of a name, so the port is in the cookie's."""
    _, _, port = request.headers.get("host", "").rpartition(":")
    return f"gradbus-{port if port.isdecimal() else 'session'}"


def check_same_origin(request: Request) -> None:
    """403 unless the page itself sent the request. `SameSite` alone would trust every other port of this machine."""
    fetched_by = request.headers.get("sec-fetch-site", "same-origin")
    _, _, origin = request.headers.get("origin", "").partition("://")
    if fetched_by != "same-origin" or origin != request.headers.get("host", ""):
        raise ProblemError(403, "foreign-origin", "only the gateway's own page may do this with a session; other callers send an API key")


def _shown_key(given: str, gateway: Gateway) -> ApiKeyRecord | None:
    scheme, _, token = given.partition(" ")
    return gateway.keyring.find(token.strip()) if scheme.lower() == "bearer" else None


async def _session_key(request: Request, gateway: Gateway) -> ApiKeyRecord | None:
    token = request.cookies.get(cookie_name(request))
    if not token:
        return None
    if request.method not in _UNCHANGING or request.headers.get("sec-fetch-site") in _FOREIGN:
        check_same_origin(request)
    key_id = await gateway.sessions.holder(token)
    return gateway.keyring.known(key_id) if key_id else None


READ = Security(_authenticate, scopes=["runs:read"])
WRITE = Security(_authenticate, scopes=["runs:write"])
UPLOAD = Security(_authenticate, scopes=["files:write"])
ANY_KEY = Security(_authenticate)
BY_KEY = Security(by_key)
