"""The methods of a path: HEAD wherever GET is served, OPTIONS everywhere, and all of them in `Allow`."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

_ACCEPT: Final = b"accept"


class HeadAndOptions:
    """Answers OPTIONS with the methods of the path, and HEAD as GET where no route serves HEAD; the server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request of these two methods, and passes on every other."""
        method = scope.get("method")
        if method == "OPTIONS" and (methods := allowed_methods(scope)):
            await Response(status_code=204, headers={"Allow": methods})(scope, receive, send)
            return
        if method == "HEAD" and "HEAD" not in _methods(scope):
            # Without `Accept`: a stream of events would have no end.
            headers = [(name, value) for name, value in scope["headers"] if name != _ACCEPT]
            scope = {**scope, "method": "GET", "headers": headers}
        await self._app(scope, receive, send)


def allowed_methods(scope: Scope) -> str:
    """The value of `Allow` for the path of `scope`; empty for a path that is not served."""
    methods = _methods(scope)
    if methods:
        methods |= {"OPTIONS", "HEAD"} if "GET" in methods else {"OPTIONS"}
    return ", ".join(sorted(methods))


def _methods(scope: Scope) -> set[str]:
    routes = [route for route in scope["app"].routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE]
    return {method for route in routes for method in route.methods or ()}
