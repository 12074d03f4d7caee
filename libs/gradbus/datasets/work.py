"""The passes over a whole dataset: in a thread if it is small, else in a process of its own with bounds.

A pass over gigabytes holds the interpreter, which all runs of a service share; and Parquet is read by C++ from a file that a user wrote.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from gradbus.aio.ordered_process import answer_of
from gradbus.datasets.parquet import is_parquet
from gradbus.datasets.prepare import DatasetFile, DatasetInfo, RowPlan, write_rows
from gradbus.datasets.prompts import write_prompts
from gradbus.errors import DatasetError
from gradbus.spec import RowColumns

_IN_THREAD_BYTES: Final = 1 << 22
_VARIABLES: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
"""Arrow's other allocators reserve more than the process may have."""
_KEPT: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME")
"""What the process sees of the service's environment: no secrets."""


class PrepareWork(BaseModel):
    """Writes the rows of a user's files."""

    kind: Literal["prepare"] = "prepare"
    files: Sequence[DatasetFile]
    plan: RowPlan
    out: Path
    most_bytes: int

    @property
    def is_small(self) -> bool:
        """Whether it may be done in a thread of the service. Raises OSError."""
        sizes = sum(path.stat().st_size for _, path in self.files)
        return sizes <= _IN_THREAD_BYTES and not any(is_parquet(path) for _, path in self.files)

    def done(self) -> DatasetInfo:
        """Does it; raises as `write_rows`."""
        with self.out.open("ab") as out:
            return write_rows(self.files, self.plan, out, self.most_bytes)


class PromptsWork(BaseModel):
    """Writes the prompts of a dataset."""

    kind: Literal["prompts"] = "prompts"
    rows: Path
    columns: RowColumns
    out: Path

    @property
    def is_small(self) -> bool:
        """Whether it may be done in a thread of the service. Raises OSError."""
        return self.rows.stat().st_size <= _IN_THREAD_BYTES

    def done(self) -> DatasetInfo:
        """Does it; raises as `write_prompts`."""
        with self.out.open("wb") as out:
            write_prompts(self.rows, self.columns, out)
        return DatasetInfo()


Work = PrepareWork | PromptsWork
WORK: Final[TypeAdapter[Work]] = TypeAdapter(Annotated[Work, Field(discriminator="kind")])


class PassEndedError(DatasetError):
    """The process did not come to the end: it took too long or too much memory, or was killed from outside."""


class Outcome(BaseModel):
    """What the process answers."""

    info: DatasetInfo | None = None
    error: str = ""


async def done(work: Work, seconds: float) -> DatasetInfo:
    """Does the work, in at most `seconds`. Raises DatasetError, also for work that takes too long or too much memory, and OSError."""
    if await asyncio.to_thread(lambda: work.is_small):
        return await asyncio.to_thread(work.done)
    outcome = await _in_process(work, seconds)
    if outcome.info is None:
        raise DatasetError(outcome.error)
    return outcome.info


async def _in_process(work: Work, seconds: float) -> Outcome:
    environment = {**{name: os.environ[name] for name in _KEPT if name in os.environ}, **_VARIABLES}
    try:
        answer = await answer_of("gradbus.datasets.process", work.model_dump_json().encode(), environment, seconds)
    except TimeoutError:
        advice = "give a smaller one, or Parquet with smaller row groups"
        raise PassEndedError(f"reading the dataset took longer than {seconds:g} s; {advice}") from None
    if not answer.content:
        advice = "it may be corrupt, or a part of it much larger than its file; write it again with smaller row groups"
        raise PassEndedError(f"the process that read the dataset ended with status {answer.status}; {advice}")
    return Outcome.model_validate_json(answer.content)
