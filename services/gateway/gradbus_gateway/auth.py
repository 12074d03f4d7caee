"""Who may do what. Every route under /v1 needs a key; each router names the scope besides."""

from __future__ import annotations

from typing import Annotated

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from gradbus.api_keys import ApiKeyRecord
from gradbus_gateway.problems import ProblemError
from gradbus_gateway.state import Here

_bearer = HTTPBearer(auto_error=False, scheme_name="ApiKey", description="`Authorization: Bearer <id>.<secret>`")


async def authenticate(
    wanted: SecurityScopes, gateway: Here, given: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> ApiKeyRecord:
    """The caller's key. 401 without a valid one, 403 when it lacks a scope."""
    record = gateway.keyring.find(given.credentials) if given else None
    if record is None:
        raise ProblemError(401, "unauthorized", "the API key is missing or wrong; send `Authorization: Bearer <id>.<secret>`")
    missing = [scope for scope in wanted.scopes if not record.allows(scope)]
    if missing:
        raise ProblemError(403, "forbidden", f"key {record.id} lacks the scope {', '.join(missing)}; use a key that has it")
    return record


READ = Security(authenticate, scopes=["runs:read"])
WRITE = Security(authenticate, scopes=["runs:write"])
UPLOAD = Security(authenticate, scopes=["files:write"])
ANY_KEY = Security(authenticate)
