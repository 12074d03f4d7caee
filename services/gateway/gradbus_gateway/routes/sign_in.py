"""From an API key to a signed-in browser: a code that the key asks for, and the session it is exchanged for, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gradbus.access.api_keys import ApiKeyRecord
from gradbus_gateway.auth.sessions import CODE_SECONDS, SESSION_SECONDS
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import KnownParameters
from gradbus_gateway.resources.runs import CallerResource, SignInResource
from gradbus_gateway.routes.authentication import ANY_KEY, BY_KEY, check_same_origin, cookie_name
from gradbus_gateway.routes.dependencies import Here

router = APIRouter(prefix="/v1", tags=["page"], route_class=KnownParameters)
page_router = APIRouter(include_in_schema=False)


class Code(BaseModel):
    """What the link carries behind its `#`, which no server log ever sees."""

    code: str = Field(min_length=1, max_length=128)


@router.post("/sign-ins", status_code=201, summary="Make a sign-in link")
async def post_sign_in(gateway: Here, key: Annotated[ApiKeyRecord, BY_KEY]) -> SignInResource:
    """The link signs one browser in to the page at the gateway's root, once, with the rights of the key that asks."""
    code = await gateway.sessions.new_code(key.id)
    return SignInResource(path=f"/sign-in#{code}", expires_at=datetime.now(UTC) + timedelta(seconds=CODE_SECONDS))


@router.get("/caller", summary="Who asks")
async def get_caller(key: Annotated[ApiKeyRecord, ANY_KEY]) -> CallerResource:
    """The key that is used, directly or by a session, and what it may do."""
    return CallerResource(id=key.id, name=key.name, scopes=key.scopes)


@page_router.post("/sign-in", status_code=204, response_class=Response)
async def redeem(given: Code, request: Request, gateway: Here) -> Response:
    """Exchanges a code for a cookie."""
    check_same_origin(request)
    token = await gateway.sessions.redeem(given.code)
    if token is None:
        raise ProblemError(410, "link-is-over", "this link was used already or is too old; run `gradbus open` again")
    response = Response(status_code=204, headers={"Cache-Control": "no-store"})
    response.set_cookie(
        cookie_name(request),
        token,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@page_router.post("/sign-out", status_code=204, response_class=Response)
async def sign_out(request: Request, gateway: Here) -> Response:
    """Ends the session."""
    check_same_origin(request)
    if token := request.cookies.get(cookie_name(request)):
        await gateway.sessions.end(token)
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
    return response
