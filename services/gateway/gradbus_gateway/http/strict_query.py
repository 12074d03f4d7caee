"""A route that refuses query parameters it does not know: a mistyped filter must not be answered as if there were none."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from gradbus_gateway.http.problems import ProblemError


class KnownParameters(APIRoute):
    """Answers 422 for a parameter that is none of its own."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()
        known = sorted(_names(self.dependant))

        async def handle_known(request: Request) -> Response:
            errors = [{"path": f"query.{name}", "message": _advice(name, known)} for name in request.query_params if name not in known]
            if errors:
                raise ProblemError(422, "invalid-request", "parameters of the request are unknown; see `errors`", errors)
            return await handle(request)

        return handle_known


def _names(dependant: Dependant) -> set[str]:
    return {parameter.alias for parameter in dependant.query_params}.union(*map(_names, dependant.dependencies))


def _advice(name: str, known: list[str]) -> str:
    if close := get_close_matches(name, known, 1):
        return f"there is no such parameter; do you mean `{close[0]}`?"
    return f"there is no such parameter; there are {', '.join(known)}" if known else "this takes no parameters"
