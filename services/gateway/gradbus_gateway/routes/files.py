"""Files by digest: uploads of datasets and models, downloads of exports."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.datastructures import UploadFile

from gradbus.access.api_keys import ApiKeyRecord
from gradbus.errors import ObjectMissingError
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.request_limits import admission_of
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.intake.uploads import FileResource, store_stream, store_upload
from gradbus_gateway.quotas.disk_room import check_room, refused_when_full
from gradbus_gateway.routes.authentication import READ, UPLOAD
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep

router = APIRouter(prefix="/v1/files", tags=["files"], route_class=StrictQueryRoute)
Digest = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$", description="`sha256:<hex>` of the file's bytes.")]
_BINARY = {"schema": {"type": "string", "format": "binary", "minLength": 1}}
_FILE_PART = {"type": "object", "required": ["file"], "properties": {"file": _BINARY["schema"]}, "additionalProperties": False}
_CONTENT: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": _BINARY}}}
_BODIES = {"application/octet-stream": _BINARY, "multipart/form-data": {"schema": _FILE_PART}}
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _BODIES}}


@router.post("", status_code=201, summary="Store a file", openapi_extra=_BODY, responses=problems(400, 507))
async def post_file(request: Request, response: Response, gateway: GatewayDep, key: Annotated[ApiKeyRecord, UPLOAD]) -> FileResource:
    """The raw body, or the part `file` of a form. Storing the same bytes again changes nothing."""
    admission_of(request).upload()
    is_form = request.headers.get("content-type", "").startswith("multipart/form-data")
    check_room(int(request.headers.get("content-length", 0)))
    async with gateway.uploads.upload(key.id) as upload:
        counted = Request(request.scope, upload.counted(request.receive))
        with refused_when_full():
            stored = await (_store_part(counted, gateway) if is_form else _store_body(counted, gateway))
        await upload.stored(stored.id, stored.bytes)
    response.headers["Location"] = f"/v1/files/{stored.id}"
    return stored


@router.head("/{digest}", dependencies=[READ], summary="Whether a file is stored", response_class=Response, responses=problems(404))
async def head_file(digest: Digest, gateway: GatewayDep) -> Response:
    """200 if it is stored, 404 if not. A file that is stored stays for a while, though no run names it."""
    await gateway.condemned.keep([digest])
    if not await gateway.objects.has_blob(digest):
        raise _missing(digest)
    return Response()


@router.get("/{digest}", dependencies=[READ], summary="Download a file", response_class=Response, responses=_CONTENT | problems(404))
async def get_file(digest: Digest, gateway: GatewayDep) -> Response:
    """The bytes of the file; check them against the digest."""
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, immutable, max-age=31536000"}
    path = gateway.objects.local_path(digest)
    if path is not None:
        if not await asyncio.to_thread(path.is_file):
            raise _missing(digest)
        return FileResponse(path, media_type="application/octet-stream", headers=headers)
    try:
        size, pieces = await gateway.objects.open_blob(digest)
    except ObjectMissingError:
        raise _missing(digest) from None
    # Never as a whole: it may be larger than memory.
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers | {"Content-Length": str(size)})


async def _store_body(request: Request, gateway: Gateway) -> FileResource:
    return await store_stream(gateway.objects, gateway.condemned, request.stream())


async def _store_part(request: Request, gateway: Gateway) -> FileResource:
    async with request.form(max_files=1, max_fields=8) as form:
        part = form.get("file")
        if not isinstance(part, UploadFile) or len(form.multi_items()) > 1:
            raise ProblemError(422, "invalid-request", "the form needs one part, the file `file`; send it as `-F file=@train.jsonl`")
        return await store_upload(gateway.objects, gateway.condemned, part.file)


def _missing(digest: str) -> ProblemError:
    return ProblemError(404, "no-such-file", f"no file {digest} is stored; POST /v1/files stores one")
