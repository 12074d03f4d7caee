"""Files by digest: uploads of datasets and models, downloads of exports."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse
from starlette.datastructures import UploadFile

from gradbus.errors import ObjectMissingError
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.intake.uploads import FileResource, store_file, store_stream
from gradbus_gateway.routes.authentication import READ, UPLOAD
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep

router = APIRouter(prefix="/v1/files", tags=["files"], route_class=StrictQueryRoute)
Digest = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$", description="`sha256:<hex>` of the file's bytes.")]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FORM = {"schema": {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}}
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/octet-stream": _BINARY, "multipart/form-data": _FORM}}}


@router.post("", status_code=201, dependencies=[UPLOAD], summary="Store a file", openapi_extra=_BODY)
async def post_file(request: Request, response: Response, gateway: GatewayDep) -> FileResource:
    """The raw body, or the part `file` of a form. Storing the same bytes again changes nothing."""
    is_form = request.headers.get("content-type", "").startswith("multipart/form-data")
    stored = await (_store_part(request, gateway) if is_form else store_stream(gateway.objects, request.stream()))
    response.headers["Location"] = f"/v1/files/{stored.id}"
    return stored


@router.head("/{digest}", dependencies=[READ], summary="Whether a file is stored", response_class=Response)
async def head_file(digest: Digest, gateway: GatewayDep) -> Response:
    """200 if it is stored, 404 if not."""
    if not await gateway.objects.has_blob(digest):
        raise _missing(digest)
    return Response()


@router.get("/{digest}", dependencies=[READ], summary="Download a file", response_class=Response)
async def get_file(digest: Digest, gateway: GatewayDep) -> Response:
    """The bytes of the file; check them against the digest."""
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, immutable, max-age=31536000"}
    path = gateway.objects.local_path(digest)
    if path is not None:
        if not await asyncio.to_thread(path.is_file):
            raise _missing(digest)
        return FileResponse(path, media_type="application/octet-stream", headers=headers)
    try:
        return Response(await gateway.objects.get_blob(digest), media_type="application/octet-stream", headers=headers)
    except ObjectMissingError:
        raise _missing(digest) from None


async def _store_part(request: Request, gateway: Gateway) -> FileResource:
    async with request.form(max_files=1, max_fields=8) as form:
        part = form.get("file")
        if not isinstance(part, UploadFile):
            raise ProblemError(422, "invalid-request", "the form has no part `file`; send it as `-F file=@train.jsonl`")
        return await store_file(gateway.objects, part.file)


def _missing(digest: str) -> ProblemError:
    return ProblemError(404, "no-such-file", f"no file {digest} is stored; POST /v1/files stores one")
