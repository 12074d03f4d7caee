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
        """Runs that take a model directly from each run, oldest first."""
        self._known: dict[str, tuple[str, frozenset[str]]] = {}
        """Name and parents of each run."""
        view.listen(self._update)

    async def newest(self, name: str) -> str | None:
        """Id of the newest run of this name, which may have been created right before the call; None if there is none."""
        await self._view.catch_up()
        return self._named[name][-1] if name in self._named else None

    async def children(self, run_id: str) -> list[str]:
        """Ids of the runs whose model, reward model or teacher is a version of this run, newest first."""
        await self._view.catch_up()
        return self._children[run_id][::-1] if run_id in self._children else []

    def _update(self, key: str) -> None:
        run_id, _, kind = key.rpartition(".")
        if kind not in {"spec", "desired"}:
            return
        record = self._view.get(f"{run_id}.spec")
        exists = record is not None and self._view.get(f"{run_id}.desired") != DELETED
        if record is not None and exists and run_id not in self._known:
            self._known[run_id] = name, parents = _relations(record)
            insort(self._named[name], run_id)
            for parent in parents:
                insort(self._children[parent], run_id)
        elif not exists and run_id in self._known:
            name, parents = self._known.pop(run_id)
            _remove(self._named, name, run_id)
            for parent in parents:
                _remove(self._children, parent, run_id)


def _remove(ids: dict[str, list[str]], key: str, run_id: str) -> None:
    ids[key].remove(run_id)
    if not ids[key]:
        del ids[key]


def _relations(record: bytes) -> tuple[str, frozenset[str]]:
    """Name and parents in a stored record; none if it cannot be read."""
    try:
        spec: dict[str, Any] = json.loads(record)["spec"]
        lineages = [(model or {}).get("lineage") for model in (spec["model"], spec["reward"].get("model"), spec.get("teacher"))]
        return str(spec["name"]), frozenset(str(lineage["ancestors"][0]["run"]) for lineage in lineages if lineage)
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", frozenset()
