"""Failures of ranks at a run: each ends all processes of the trainer, so a file counts them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from gradbus.control.failures import RunFailures
from gradbus.control.runs import StoredModel
from gradbus.errors import TrainingError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)


class _Failures(StoredModel):
    run_id: str = ""
    failures: list[tuple[int, str]] = Field(default_factory=list)
    """The step that the run had reached, and the cause."""


class RankFailures:
    """The newest failures of one run. A rank that was killed or lost its connection is no failure of the run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, run_id: str) -> None:
        """Raises TrainingError if the ranks failed at this run in the same way again and again."""
        stored = self._read()
        counted = RunFailures(run_id)
        for reached, cause in stored.failures if stored.run_id == run_id else ():
            counted.progressed(reached)
            counted.add_cause(cause)
        if counted.ends_run:
            raise TrainingError(
                f"the ranks failed {counted.count} times in the same way: {counted.cause}; correct what it names, or look into the log of "
                "each rank, and submit again"
            )

    def add(self, run_id: str, cause: str, reached: int) -> None:
        """Notes a failure at a run that had reached a step (-1: it was being prepared)."""
        stored = self._read()
        earlier = stored.failures if stored.run_id == run_id else []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(_Failures(run_id=run_id, failures=[*earlier, (reached, cause)]).to_bytes())
        except OSError as error:
            _log.warning("rank_failure_not_noted", run_id=run_id, cause=cause, error=str(error))

    def _read(self) -> _Failures:
        try:
            return _Failures.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):  # there is none yet, or a power cut tore it
            return _Failures()
