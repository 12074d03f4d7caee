"""Runs that each key has submitted, from a live view of the bucket `runs`."""

from __future__ import annotations

import json
from collections import Counter

from gradbus.bus import View
from gradbus.control.runs import DELETED, FINAL_STATES
from gradbus_gateway.quotas.exceeded import quota_exceeded
from gradbus_gateway.settings import Quotas


class RunQuota:
    """Counts runs by key. Requests in progress at the same moment may exceed a quota by as many."""

    def __init__(self, view: View, quotas: Quotas) -> None:
        self._view = view
        self._quotas = quotas
        self._owners: dict[str, str] = {}
        """Key of each run that is not deleted."""
        self._unfinished: set[str] = set()
        self._runs_of: Counter[str] = Counter()
        self._unfinished_of: Counter[str] = Counter()
        view.listen(self._update)

    def check(self, key_id: str) -> None:
        """Raises the problem 403 if the key may not submit one more run."""
        runs, unfinished = self._runs_of[key_id], self._unfinished_of[key_id]
        if self._quotas.unfinished_runs and unfinished >= self._quotas.unfinished_runs:
            raise quota_exceeded(
                key_id,
                f"key {key_id} has {unfinished} runs that have not ended, as many as it may have; wait for some, cancel some, or ask the "
                "operator to raise GRADBUS_QUOTA_UNFINISHED_RUNS",
            )
        if self._quotas.runs and runs >= self._quotas.runs:
            raise quota_exceeded(
                key_id,
                f"key {key_id} has {runs} runs, as many as it may have; delete some that have ended, or ask the operator to raise "
                "GRADBUS_QUOTA_RUNS",
            )

    def _update(self, key: str) -> None:
        run_id, _, kind = key.rpartition(".")
        if kind == "status" and run_id in self._owners:
            self._set_unfinished(run_id, not self._has_ended(run_id))
        elif kind in {"spec", "desired"}:
            self._set_owner(run_id)

    def _set_owner(self, run_id: str) -> None:
        spec = self._view.get(f"{run_id}.spec")
        exists = spec is not None and self._view.get(f"{run_id}.desired") != DELETED
        if exists and run_id not in self._owners:
            self._owners[run_id] = owner = _field(spec, "key_id")
            self._runs_of[owner] += 1
            self._set_unfinished(run_id, not self._has_ended(run_id))
        elif not exists and run_id in self._owners:
            self._set_unfinished(run_id, False)
            self._runs_of[self._owners.pop(run_id)] -= 1

    def _set_unfinished(self, run_id: str, value: bool) -> None:
        if value == (run_id in self._unfinished):
            return
        (self._unfinished.add if value else self._unfinished.discard)(run_id)
        self._unfinished_of[self._owners[run_id]] += 1 if value else -1

    def _has_ended(self, run_id: str) -> bool:
        return _field(self._view.get(f"{run_id}.status"), "state") in FINAL_STATES


def _field(record: bytes | None, name: str) -> str:
    """A field of a stored record; empty if the record is missing or cannot be read."""
    try:
        return str(json.loads(record or b"{}")[name])
    except (ValueError, LookupError, TypeError):
        return ""
