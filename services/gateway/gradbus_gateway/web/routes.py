"""Serves the web UI. It needs no key: its files hold no data, and everything it shows comes from the REST interface."""

from __future__ import annotations

from functools import cache
from typing import Final

from fastapi import APIRouter, Request, Response

from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.web.static_files import StaticFile, StaticFiles, read_static_files

router = APIRouter(include_in_schema=False)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_SECURITY_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_files = cache(read_static_files)


@router.get("/")
async def index(request: Request) -> Response:
    """The web UI."""
    return _document(request, "index.html")


@router.get("/sign-in")
async def sign_in(request: Request) -> Response:
    """The target of a sign-in link, which exchanges the code behind its `#` for a session."""
    return _document(request, "sign-in.html")


@router.get("/static/{release}/{path:path}")
async def asset(release: str, path: str, request: Request) -> Response:
    """A script, a style sheet or an image. `path` is only looked up among the files that were read, never on the disk."""
    files = _files()
    file = files.assets.get(path)
    if file is None:
        raise ProblemError(404, "not-found", "the web UI has no such file; load it again from the gateway's root")
    # During an update a document of another replica may name another release: it gets this one, which is not cached.
    return _response(request, file, _IMMUTABLE if release == files.release else "no-cache")


def _document(request: Request, name: str) -> Response:
    files: StaticFiles = _files()
    tag = f'"{files.release}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})
    response = _response(request, files.documents[name], "no-cache")
    response.headers["ETag"] = tag
    return response


def _response(request: Request, file: StaticFile, cache_control: str) -> Response:
    accepts_gzip = "gzip" in request.headers.get("accept-encoding", "")
    encoding = {"Content-Encoding": "gzip"} if accepts_gzip else {}
    headers = {**_SECURITY_HEADERS, "Cache-Control": cache_control, "Vary": "Accept-Encoding", **encoding}
    return Response(file.gzipped if accepts_gzip else file.content, headers=headers, media_type=file.media_type)
