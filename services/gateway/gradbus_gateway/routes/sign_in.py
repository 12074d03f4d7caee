"""Signs a browser in: an API key requests a one-time code, and the browser exchanges the code for a session."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gradbus.access.api_keys import ApiKeyRecord, Scope
from gradbus.resources.sign_ins import SignInResource
from gradbus_gateway.auth.sessions import CODE_SECONDS, SESSION_SECONDS
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.request_limits import admission_of
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.routes.authentication import API_KEY, AUTHENTICATED, check_same_origin, cookie_name
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1", tags=["web UI"], route_class=StrictQueryRoute)
browser_router = APIRouter(include_in_schema=False)


class CallerResource(BaseModel):
    """An API key, as its holder may see it."""

    object: Literal["caller"] = "caller"
    id: str
    name: str
    scopes: tuple[Scope, ...]


class SignInCode(BaseModel):
    """The code of a sign-in link, which stands behind its `#`, so that no server log contains it."""

    code: str = Field(min_length=1, max_length=128)


@router.post("/sign-ins", status_code=201, summary="Create a sign-in link")
async def post_sign_in(request: Request, gateway: GatewayDep, key: Annotated[ApiKeyRecord, API_KEY]) -> SignInResource:
    """The link signs one browser in to the web UI at the gateway's root, once, with the rights of the caller's key."""
    admission_of(request).sign_in()
    code = await gateway.sessions.new_code(key.id)
    return SignInResource(path=f"/sign-in#{code}", expires_at=datetime.now(UTC) + timedelta(seconds=CODE_SECONDS))


@router.get("/caller", summary="Show the caller's API key")
async def get_caller(key: Annotated[ApiKeyRecord, AUTHENTICATED]) -> CallerResource:
    """The key of the request, or of its session, with its scopes."""
    return CallerResource(id=key.id, name=key.name, scopes=key.scopes)


@browser_router.post("/sign-in", status_code=204, response_class=Response)
async def redeem(body: SignInCode, request: Request, gateway: GatewayDep) -> Response:
    """Exchanges a code for the session cookie."""
    admission_of(request).sign_in()
    check_same_origin(request)
    token = await gateway.sessions.redeem(body.code)
    if token is None:
        raise ProblemError(410, "link-is-over", "this link was used already or has expired; run `gradbus open` again")
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


@browser_router.post("/sign-out", status_code=204, response_class=Response)
async def sign_out(request: Request, gateway: GatewayDep) -> Response:
    """Ends the session."""
    check_same_origin(request)
    if token := request.cookies.get(cookie_name(request)):
        await gateway.sessions.end(token)
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
    return response
