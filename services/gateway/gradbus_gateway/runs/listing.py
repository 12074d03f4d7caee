"""The runs in order, from a live view of the bucket: a page costs the same however many runs there are."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, insort
from collections.abc import Collection

from gradbus.bus import View
from gradbus.control.annotations import ANNOTATIONS
from gradbus.control.runs import DELETED
from gradbus.errors import CorruptRecordError, SettingsError
from gradbus.ids import checked_name
from gradbus.telemetry import get_logger
from gradbus_gateway.runs.parsed_runs import ParsedRuns, RunKeys
from gradbus_gateway.runs.store import Run, UnreadableRun, read_annotations

_log = get_logger(__name__)


class RunList:
    """Every run that is not being deleted. Run ids sort by time of creation."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._run_ids: list[str] = []
        """Oldest first."""
        self._tags: dict[str, frozenset[str]] = {}
        """Of the runs that have tags."""
        self._parsed = ParsedRuns()
        view.listen(self._update)

    async def page(self, after: str, limit: int, tags: Collection[str] = ()) -> list[Run | UnreadableRun]:
        """Up to `limit` runs older than the id `after` that have all `tags`, newest first. Unreadable runs are listed too.

        A run that was created before the call is listed, whichever replica created it.
        """
        await self._view.catch_up()
        run_ids = self._with_tags(frozenset(tags)) if tags else self._run_ids
        end = bisect_left(run_ids, after) if after else len(run_ids)
        return [self._listed(run_id) for run_id in reversed(run_ids[max(0, end - limit) : end])]

    def _with_tags(self, wanted: frozenset[str]) -> list[str]:
        """Oldest first. A run may have been deleted and its tags not yet."""
        return sorted(run_id for run_id, tags in self._tags.items() if wanted <= tags and self._place(run_id)[1])

    def find(self, run_id: str) -> Run | UnreadableRun | None:
        """The run as the view shows it, which may be behind for a moment; None if it does not show it."""
        _, is_listed = self._place(run_id)
        return self._listed(run_id) if is_listed else None

    def _place(self, run_id: str) -> tuple[int, bool]:
        """Where the id belongs in the list, and whether it is there."""
        at = bisect_left(self._run_ids, run_id)
        return at, self._run_ids[at : at + 1] == [run_id]

    def _listed(self, run_id: str) -> Run | UnreadableRun:
        others = (self._view.get(f"{run_id}.{kind}") for kind in ("desired", "status", ANNOTATIONS))
        return self._parsed.read(run_id, RunKeys(self._view.entries[f"{run_id}.spec"], *others))

    def _update(self, key: str) -> None:
        run_id, _, kind = key.rpartition(".")
        if kind == ANNOTATIONS:
            self._tag(run_id)
        if kind not in {"spec", "desired"}:
            return
        at, is_listed = self._place(run_id)
        belongs = self._view.get(f"{run_id}.spec") is not None and self._view.get(f"{run_id}.desired") != DELETED
        if is_listed and not belongs:
            del self._run_ids[at]
            self._parsed.forget(run_id)
        elif belongs and not is_listed and _is_run_id(run_id):
            insort(self._run_ids, run_id)

    def _tag(self, run_id: str) -> None:
        self._tags.pop(run_id, None)
        with contextlib.suppress(CorruptRecordError):  # the run itself is listed as unreadable
            if tags := read_annotations(run_id, self._view.get(f"{run_id}.{ANNOTATIONS}")).tags:
                self._tags[run_id] = frozenset(tags)


def _is_run_id(name: str) -> bool:
    try:
        checked_name(name, "run id")
    except SettingsError as error:
        _log.warning("run_key_ignored", key=f"{name}.spec", error=str(error))
        return False
    return True
