"""The runs in order, from a live view of the bucket: a page costs the same however many runs there are."""

from __future__ import annotations

from bisect import bisect_left, insort

from gradbus.bus import View
from gradbus.control.runs import DELETED
from gradbus.errors import SettingsError
from gradbus.ids import checked_name
from gradbus.telemetry import get_logger
from gradbus_gateway.runs.parsed_runs import ParsedRuns, RunKeys
from gradbus_gateway.runs.store import Run, UnreadableRun

_log = get_logger(__name__)


class RunList:
    """Every run that is not being deleted. Run ids sort by time of creation."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._run_ids: list[str] = []
        """Oldest first."""
        self._parsed = ParsedRuns()
        view.listen(self._update)

    async def page(self, after: str, limit: int) -> list[Run | UnreadableRun]:
        """Up to `limit` runs older than the id `after`, newest first. Unreadable runs are listed too.

        A run that was created before the call is listed, whichever replica created it.
        """
        await self._view.catch_up()
        end = bisect_left(self._run_ids, after) if after else len(self._run_ids)
        return [self._listed(run_id) for run_id in reversed(self._run_ids[max(0, end - limit) : end])]

    def find(self, run_id: str) -> Run | UnreadableRun | None:
        """The run as the view shows it, which may be behind for a moment; None if it does not show it."""
        _, is_listed = self._place(run_id)
        return self._listed(run_id) if is_listed else None

    def _place(self, run_id: str) -> tuple[int, bool]:
        """Where the id belongs in the list, and whether it is there."""
        at = bisect_left(self._run_ids, run_id)
        return at, self._run_ids[at : at + 1] == [run_id]

    def _listed(self, run_id: str) -> Run | UnreadableRun:
        spec, desired, status = (
            self._view.entries[f"{run_id}.spec"],
            self._view.get(f"{run_id}.desired"),
            self._view.get(f"{run_id}.status"),
        )
        return self._parsed.read(run_id, RunKeys(spec, desired, status))

    def _update(self, key: str) -> None:
        run_id, _, kind = key.rpartition(".")
        if kind not in {"spec", "desired"}:
            return
        at, is_listed = self._place(run_id)
        belongs = self._view.get(f"{run_id}.spec") is not None and self._view.get(f"{run_id}.desired") != DELETED
        if is_listed and not belongs:
            del self._run_ids[at]
            self._parsed.forget(run_id)
        elif belongs and not is_listed and _is_run_id(run_id):
            insort(self._run_ids, run_id)


def _is_run_id(name: str) -> bool:
    try:
        checked_name(name, "run id")
    except SettingsError as error:
        _log.warning("run_key_ignored", key=f"{name}.spec", error=str(error))
        return False
    return True
