"""The OpenAPI document: every problem that a route can answer with is in it."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Final

from fastapi import FastAPI

from gradbus_gateway.http.problems import MEDIA_TYPE, ProblemDocument

Json = dict[str, Any]
_MEANINGS: Final = {
    400: "The body cannot be read.",
    401: "The API key is missing or wrong.",
    403: "The key lacks the scope, or the request comes from another site.",
    404: "There is no such resource.",
    405: "The path does not serve this method; `Allow` lists those that it serves.",
    409: "The state of the run forbids it.",
    413: "The body is too large.",
    422: "The spec or a parameter is wrong; `errors` lists every fault.",
    429: "The key sends too much; try again after `Retry-After` seconds.",
    500: "A stored record cannot be read.",
    503: "A service behind the gateway does not respond, or its disk is full; try again after `Retry-After` seconds.",
    507: "The disk has no room for the upload.",
}
_OF_EVERY_ROUTE: Final = (405, 413)
_OF_EVERY_AUTHENTICATED_ROUTE: Final = (401, 403, *_OF_EVERY_ROUTE, 422, 429, 503)


def problems(*statuses: int) -> dict[int | str, Json]:
    """The `responses` of a route that can answer with these problems, beyond those of every route."""
    return {status: {"$ref": f"#/components/responses/Problem{status}"} for status in statuses}


class DescribedApp(FastAPI):
    """An application whose document lists the problems that every route shares. A route names its own by `problems`."""

    def openapi(self) -> Json:
        """The document, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            for of_fastapi in ("HTTPValidationError", "ValidationError"):
                schemas.pop(of_fastapi, None)
            schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
            document["components"]["responses"] = {f"Problem{status}": _response(status) for status in _MEANINGS}
            for path in document["paths"].values():
                for operation in path.values():
                    _complete(operation)
        return self.openapi_schema or {}

    @cached_property
    def document(self) -> bytes:
        """The document as JSON. FastAPI would encode it for every request, which takes as long as ten other requests."""
        return json.dumps(self.openapi(), ensure_ascii=False).encode()


def _complete(operation: Json) -> None:
    for parameter in operation.get("parameters", ()):
        # FastAPI describes an optional parameter as one that may be null, which no URL can express.
        kinds = [kind for kind in parameter["schema"].pop("anyOf", ()) if kind != {"type": "null"}]
        parameter["schema"] |= kinds[0] if kinds else {}
    shared = _OF_EVERY_AUTHENTICATED_ROUTE if "security" in operation else _OF_EVERY_ROUTE
    responses = operation["responses"] | {str(status): response for status, response in problems(*shared).items()}
    # FastAPI adds a description, which the reference has already.
    operation["responses"] = {
        status: {"$ref": response["$ref"]} if "$ref" in response else response for status, response in sorted(responses.items())
    }


def _response(status: int) -> Json:
    headers = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}} if status in {429, 503} else {}
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {"description": _MEANINGS[status], "content": content} | ({"headers": headers} if headers else {})
