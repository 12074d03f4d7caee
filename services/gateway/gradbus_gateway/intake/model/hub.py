"""Downloads models from the hub, each in a process that is killed when it takes too long, into a folder that is removed afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from gradbus.aio.ordered_process import answer_of
from gradbus.errors import Fault, SpecError
from gradbus.objects.folder import partial_folder
from gradbus_gateway.intake.check_turns import in_turn
from gradbus_gateway.settings import GatewaySettings

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_MAX_DOWNLOADS: Final = 2
_DOWNLOAD: Final = "gradbus_gateway.intake.model.hub_download"
_VARIABLES: Final = (
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_TOKEN",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "PATH",
    "PYTHONPATH",
    "SSL_CERT_FILE",
)
"""What the downloading process sees of the gateway's environment: none of its other secrets."""


def is_hub_id(path: str) -> bool:
    """Whether `path` reads `owner/name`."""
    return _HUB_ID.fullmatch(path) is not None


class Hub:
    """Downloads of models: one of a model and one of a caller at a time, and few of all models."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._folder = settings.cache_dir / "hub"
        self._slots = asyncio.Semaphore(_MAX_DOWNLOADS)
        self._of_callers = WeakValueDictionary[str, asyncio.Lock]()
        self._of_models = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, hub_id: str, revision: str, caller: str) -> AsyncIterator[None]:
        """Inside the block, nobody else is inside with this model, nor the caller with another. Raises the problem 503."""
        # The caller's turn comes first: who waits for it with many models keeps none of them from others.
        of_caller = self._of_callers.setdefault(caller, asyncio.Lock())
        of_model = self._of_models.setdefault((hub_id, revision), asyncio.Lock())
        async with in_turn(self._settings.max_hub_seconds, of_caller, of_model):
            yield

    @asynccontextmanager
    async def downloaded(self, hub_id: str, revision: str, kind: str = "policy") -> AsyncIterator[Path]:
        """The model's files, in a folder that exists inside the block, itself inside `turn`; `kind`: what it has to be.

        Raises SpecError with the hub's reason, and the problem 503 if other downloads take too long.
        """
        async with in_turn(self._settings.max_hub_seconds, self._slots), partial_folder(self._folder) as folder:
            if reason := await self._download(hub_id, revision, folder, kind):
                allowed = "a hub id with a revision that the server may read, or a folder"
                raise SpecError([Fault("model.path", f"cannot be taken from the hub: {reason}", f"{hub_id} at {revision}", allowed)])
            yield folder

    async def _download(self, hub_id: str, revision: str, folder: Path, kind: str) -> str:
        """Why the download failed, or nothing."""
        most = self._settings.max_model_bytes
        order = {"hub_id": hub_id, "revision": revision, "folder": str(folder), "max_bytes": most, "kind": kind}
        seconds = self._settings.max_hub_seconds
        try:
            answer = await answer_of(_DOWNLOAD, json.dumps(order).encode(), self._environment(folder), seconds)
        except TimeoutError:
            return f"it took longer than {seconds:g} s (GRADBUS_MAX_HUB_SECONDS)"
        return "" if answer.status == 0 else answer.content.decode(errors="replace").strip() or "the download ended without a reason"

    def _environment(self, folder: Path) -> dict[str, str]:
        given = {name: value for name in _VARIABLES if (value := os.environ.get(name))}
        token = self._settings.hf_token.get_secret_value()
        here = {"HF_XET_CACHE": str(folder / ".xet"), "TMPDIR": str(folder)}
        return {"HF_HOME": str(folder / ".home")} | given | here | ({"HF_TOKEN": token} if token else {})
