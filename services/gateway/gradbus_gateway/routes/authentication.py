"""Authentication of requests. Every route under /v1 needs an API key or a session of the web UI, and names the scope it requires."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Request, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security import SecurityScopes
from fastapi.security.base import SecurityBase
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.access.api_keys import ApiKeyRecord
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.request_limits import admission_of
from gradbus_gateway.routes.dependencies import Gateway, gateway_of

_READ_SCOPE: Final = "runs:read"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OTHER_SITES: Final = frozenset({"cross-site", "same-site"})


class _Authentication(SecurityBase):
    """The one security dependency; it has no dependencies of its own, because FastAPI resolves them for every request."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="`Authorization: Bearer <id>.<secret>`")
        self.scheme_name = "ApiKey"

    async def __call__(self, request: Request, required: SecurityScopes) -> ApiKeyRecord:
        """The caller's key, from the header or by the session. Raises the problem 401 without a valid key, 403 if it lacks a scope."""
        gateway = gateway_of(request)
        record = await _key_of(request, gateway)
        admission = admission_of(request)
        if record is None:
            admission.check_address()
            detail = "the API key is missing or wrong; send `Authorization: Bearer <id>.<secret>`, or sign in with `gradbus open`"
            raise ProblemError(401, "unauthorized", detail)
        admission.authenticated(record.id)
        missing = [scope for scope in required.scopes if not record.allows(scope)]
        if missing:
            raise ProblemError(403, "forbidden", f"key {record.id} lacks the scope {', '.join(missing)}; use a key that has it")
        return record


_authenticate = _Authentication()


async def require_api_key(request: Request, record: Annotated[ApiKeyRecord, Security(_authenticate)]) -> ApiKeyRecord:
    """The caller's key, sent as a header. A session must not create further sign-in links."""
    if "authorization" not in request.headers:
        raise ProblemError(403, "forbidden", "a session cannot create sign-in links; run `gradbus open` again")
    return record


async def may_still_read(request: Request) -> bool:
    """Whether the key or the session that sent `request` is still valid and may read runs. True while nobody can tell."""
    try:
        record = await _key_of(request, gateway_of(request))
    except (NatsError, APIError, TimeoutError):
        return True  # NATS is away, and no event comes meanwhile
    return record is not None and record.allows(_READ_SCOPE)


def cookie_name(request: Request) -> str:
    """Name of the session cookie. It contains the port, because browsers share cookies among all ports of a host."""
    _, _, port = request.headers.get("host", "").rpartition(":")
    return f"gradbus-{port if port.isdecimal() else 'session'}"


def check_same_origin(request: Request) -> None:
    """Raises the problem 403 unless the web UI sent the request. `SameSite` alone would trust every other port of this machine."""
    fetch_site = request.headers.get("sec-fetch-site", "same-origin")
    _, _, origin = request.headers.get("origin", "").partition("://")
    if fetch_site != "same-origin" or origin != request.headers.get("host", ""):
        raise ProblemError(403, "foreign-origin", "only the gateway's own web UI may do this with a session; other callers send an API key")


async def _key_of(request: Request, gateway: Gateway) -> ApiKeyRecord | None:
    header = request.headers.get("authorization")
    return await _key_of_session(request, gateway) if header is None else gateway.keyring.find_in_header(header)


async def _key_of_session(request: Request, gateway: Gateway) -> ApiKeyRecord | None:
    token = request.cookies.get(cookie_name(request))
    if not token:
        return None
    if request.method not in _SAFE_METHODS or request.headers.get("sec-fetch-site") in _OTHER_SITES:
        check_same_origin(request)
    key_id = await gateway.sessions.key_id(token)
    return gateway.keyring.by_id(key_id) if key_id else None


async def _wait_for_turn(request: Request) -> None:
    await admission_of(request).take_list_turn()


READ = Security(_authenticate, scopes=[_READ_SCOPE])
WRITE = Security(_authenticate, scopes=["runs:write"])
UPLOAD = Security(_authenticate, scopes=["files:write"])
AUTHENTICATED = Security(_authenticate)
API_KEY = Security(require_api_key)
LIST = Depends(_wait_for_turn)
"""Behind the authentication of a route that responds with a list."""
