"""The page's files, read once: each with its type, and all under one digest, which names them in the page's own links."""

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
_PLACE: Final = b"{release}"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, ready to be sent."""

    media_type: str
    content: bytes
    packed: bytes
    """The same, gzipped."""


@dataclass(frozen=True, slots=True)
class PageFiles:
    """Documents say which release of the assets they want, so a browser keeps assets for ever and never mixes two releases."""

    release: str
    documents: dict[str, PageFile]
    assets: dict[str, PageFile]


def read_page_files(folder: Path = _FOLDER) -> PageFiles:
    """All files below `folder`."""
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix in _TYPES}
    release = _digest(contents.items())
    documents = {name: _file(name, contents[name].replace(_PLACE, release.encode())) for name in _DOCUMENTS}
    return PageFiles(release, documents, {name: _file(name, content) for name, content in contents.items() if name not in _DOCUMENTS})


def _digest(contents: Iterable[tuple[str, bytes]]) -> str:
    state = hashlib.sha256()
    for name, content in contents:
        state.update(f"{name}:{len(content)}:".encode())
        state.update(content)
    return state.hexdigest()[:16]


def _file(name: str, content: bytes) -> PageFile:
    return PageFile(_TYPES[Path(name).suffix], content, gzip.compress(content, mtime=0))
