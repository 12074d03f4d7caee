"""Routes that refuse unknown query parameters: a mistyped filter must not return everything."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Any, Final

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from gradbus_gateway.http.problems import ProblemError

_MOST_ERRORS: Final = 20
"""A request may have thousands of parameters, and advice for each takes time."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictQueryRoute(APIRoute):
    """Responds with 422 to a request with a query parameter that the route does not have."""

    def get_route_handler(self) -> Handler:
        """See `APIRoute`."""
        return partial(_handle, super().get_route_handler(), sorted(_names(self.dependant)))


async def _handle(handler: Handler, known: list[str], request: Request) -> Response:
    unknown = islice((name for name in request.query_params if name not in known), _MOST_ERRORS)
    errors = [{"path": f"query.{name}", "message": _advice(name, known)} for name in unknown]
    if errors:
        raise ProblemError(422, "invalid-request", "parameters of the request are unknown; see `errors`", errors)
    return await handler(request)


def _names(dependant: Dependant) -> set[str]:
    return {parameter.alias for parameter in dependant.query_params}.union(*map(_names, dependant.dependencies))


def _advice(name: str, known: list[str]) -> str:
    if close := get_close_matches(name, known, 1):
        return f"there is no such parameter; do you mean `{close[0]}`?"
    return f"there is no such parameter; the parameters are {', '.join(known)}" if known else "this route takes no parameters"
