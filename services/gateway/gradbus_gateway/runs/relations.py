"""Which runs have a name, and which come from a run: from a live view of the bucket `runs`."""

from __future__ import annotations

import json
from bisect import insort
from collections import defaultdict
from typing import Any

from gradbus.bus import View
from gradbus.control.runs import DELETED


class RunRelations:
    """Names and parents of the runs that are not being deleted. Run ids sort by time of creation."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._named: defaultdict[str, list[str]] = defaultdict(list)
        """Runs of each name, oldest first."""
        self._children: defaultdict[str, list[str]] = defaultdict(list)
        """Runs whose model comes directly from each run, oldest first."""
        self._known: dict[str, tuple[str, str]] = {}
        """Name and parent of each run; the parent is empty for a run that has none."""
        view.listen(self._update)

    async def newest(self, name: str) -> str | None:
        """Id of the newest run of this name, which may have been created right before the call; None if there is none."""
        await self._view.catch_up()
        return self._named[name][-1] if name in self._named else None

    async def children(self, run_id: str) -> list[str]:
        """Ids of the runs whose model is a version of this run, newest first."""
        await self._view.catch_up()
        return self._children[run_id][::-1] if run_id in self._children else []

    def _update(self, key: str) -> None:
        run_id, _, kind = key.rpartition(".")
        if kind not in {"spec", "desired"}:
            return
        record = self._view.get(f"{run_id}.spec")
        exists = record is not None and self._view.get(f"{run_id}.desired") != DELETED
        if record is not None and exists and run_id not in self._known:
            self._known[run_id] = name, parent = _relations(record)
            insort(self._named[name], run_id)
            if parent:
                insort(self._children[parent], run_id)
        elif not exists and run_id in self._known:
            name, parent = self._known.pop(run_id)
            _remove(self._named, name, run_id)
            if parent:
                _remove(self._children, parent, run_id)


def _remove(ids: dict[str, list[str]], key: str, run_id: str) -> None:
    ids[key].remove(run_id)
    if not ids[key]:
        del ids[key]


def _relations(record: bytes) -> tuple[str, str]:
    """Name and parent in a stored record; empty if it cannot be read."""
    try:
        spec: dict[str, Any] = json.loads(record)["spec"]
        ancestors = (spec["model"].get("lineage") or {"ancestors": ()})["ancestors"]
        return str(spec["name"]), str(ancestors[0]["run"]) if ancestors else ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", ""
