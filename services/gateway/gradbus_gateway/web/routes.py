"""Serves the page. No key is needed: the files say nothing, and what they show comes from the REST interface."""

from __future__ import annotations

from functools import cache
from typing import Final

from fastapi import APIRouter, Request, Response

from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.web.files import PageFile, PageFiles, read_page_files

router = APIRouter(include_in_schema=False)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_GUARDS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_files = cache(read_page_files)


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return _document(request, "index.html")


@router.get("/sign-in")
async def sign_in(request: Request) -> Response:
    """Where a sign-in link leads: it exchanges the code behind its `#`."""
    return _document(request, "sign-in.html")


@router.get("/page/{release}/{name:path}")
async def asset(release: str, name: str, request: Request) -> Response:
    """A script, a style or a picture."""
    files = _files()
    file = files.assets.get(name)
    if file is None:
        raise ProblemError(404, "not-found", "the page has no such file; load it again from the gateway's root")
    # During an update another replica may name its own release: ours serves for now, and is not kept.
    return _response(request, file, _FOR_EVER if release == files.release else "no-cache")


def _document(request: Request, name: str) -> Response:
    files: PageFiles = _files()
    tag = f'"{files.release}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})
    response = _response(request, files.documents[name], "no-cache")
    response.headers["ETag"] = tag
    return response


def _response(request: Request, file: PageFile, caching: str) -> Response:
    packs = "gzip" in request.headers.get("accept-encoding", "")
    headers = {**_GUARDS, "Cache-Control": caching, "Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if packs else {})
    return Response(file.packed if packs else file.content, headers=headers, media_type=file.media_type)
