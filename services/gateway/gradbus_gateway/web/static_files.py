"""The files of the web UI, read once. The digest of all files is the release, which is part of every asset's address."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_DOCUMENTS: Final = ("index.html", "sign-in.html")
_RELEASE_MARK: Final = b"{release}"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, ready to be sent."""

    media_type: str
    content: bytes
    gzipped: bytes
    """`content`, compressed."""


@dataclass(frozen=True, slots=True)
class StaticFiles:
    """Documents link to the assets of their own release, so browsers may cache assets for ever and never mix two releases."""

    release: str
    documents: dict[str, StaticFile]
    """HTML files, by name."""
    assets: dict[str, StaticFile]
    """All other files, by their path below the folder."""


def read_static_files(folder: Path = _FOLDER) -> StaticFiles:
    """All files below `folder`."""
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix in _TYPES}
    release = _digest(contents.items())
    documents = {name: _file(name, contents[name].replace(_RELEASE_MARK, release.encode())) for name in _DOCUMENTS}
    return StaticFiles(release, documents, {name: _file(name, content) for name, content in contents.items() if name not in _DOCUMENTS})


def _digest(contents: Iterable[tuple[str, bytes]]) -> str:
    state = hashlib.sha256()
    for name, content in contents:
        state.update(f"{name}:{len(content)}:".encode())
        state.update(content)
    return state.hexdigest()[:16]


def _file(name: str, content: bytes) -> StaticFile:
    return StaticFile(_TYPES[Path(name).suffix], content, gzip.compress(content, mtime=0))
