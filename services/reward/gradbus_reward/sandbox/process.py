"""One grader process, as the service sees it. Nothing that it sends is trusted. `child.py` is the other end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from gradbus.sandbox.process import ChildProgram, ConfinedProcess, ProcessStoppedError, SourceError, boot
from gradbus_reward.sandbox.bounds import is_bounded

LOAD_SECONDS = 10.0
"""Of the user's source."""
LINE_BYTES = 256 << 10
FOLDER = str(Path(__file__).resolve().parents[2])
PYTHON = ChildProgram("grader", "reward", boot("gradbus_reward.sandbox.child"), FOLDER, LINE_BYTES)
"""Runs users' source."""


def importing(module: str, argument: object) -> ChildProgram:
    """Runs `main(argument)` of a module of this package, which finds its libraries where this process does."""
    path, name = [folder for folder in sys.path if folder], module.rpartition(".")[2]
    start = f"import sys; sys.path[:] = [*sys.argv[1:3], *{path!r}]; from {module.rpartition('.')[0]} import {name}"
    return ChildProgram("grader", "reward", f"{start}; {name}.main({argument!r})", FOLDER, LINE_BYTES)


Row = tuple[str, ...]
"""The texts of one sample; for a reward function output text, finish reason, item as JSON, and the prompt if it reads one."""


class GraderProcess(ConfinedProcess):
    """A confined process that holds the loaded sources of one grader."""

    _parts: AbstractSet[str] = frozenset()
    _graded = 0
    """Rows graded since it began."""

    @classmethod
    async def start(cls, sources: Mapping[str, Any], program: ChildProgram = PYTHON, *, allow_network: bool) -> GraderProcess:
        """Starts, confines and loads. Raises SourceError for sources that fail, UserCodeError if it cannot be confined."""
        grader = await cls.confined(program, allow_network=allow_network)
        grader._parts = sources.keys()
        try:
            await grader._load(sources)
        except BaseException:
            await grader.stop()
            raise
        return grader

    async def grade(
        self, rows: Sequence[Row], seconds: float, graded: Callable[[Mapping[str, Any]], None], *, at_once: bool = False
    ) -> None:
        """Gives `graded` one result per row, in their order, as the child sent them.

        Kills the process and raises ProcessStoppedError if a result does not come within `seconds` of the one before. `at_once`: the first
        row without a result is then the one that stopped it; otherwise one of the next rows, if they are quick, may be it.
        """
        loop = asyncio.get_running_loop()
        self.resume()
        try:
            async with asyncio.timeout(seconds) as deadline:
                await self._send([at_once, rows])
                left = len(rows)
                while left:
                    results = await self._receive_results(left)
                    left -= len(results)
                    for result in results:
                        graded(result)
                    deadline.reschedule(loop.time() + seconds)
        except TimeoutError as error:
            self.kill()
            raise ProcessStoppedError(f"the grader was stopped after {seconds:.1f} s; bound its work per sample") from error
        except BaseException:
            # Also when the caller is cancelled, because the next call could not use the rest of this exchange.
            self.kill()
            raise
        self.pause()

    async def _load(self, sources: Mapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await self._send({"sources": dict(sources)})
                faults = await self._receive_field("faults")
        except TimeoutError as error:
            raise SourceError(f"the grader's source did not load in {LOAD_SECONDS:.0f} s; do less at its top level") from error
        except ProcessStoppedError as error:
            raise SourceError(f"the grader's source ended its process while it loaded: {error}") from error
        if faults:
            raise SourceError("; ".join(f"grader {part!r} does not load: {reason}" for part, reason in faults.items()))
        self.pause()

    async def _receive_results(self, most: int) -> Sequence[Mapping[str, Any]]:
        """The results of the next rows, at least one and at most `most`."""
        match await self._receive():
            case [self._graded, [_, *_] as results] if len(results) <= most and all(is_bounded(result, self._parts) for result in results):
                self._graded += len(results)
                return list(results)
        raise self._stopped("process broke its protocol; do not use its open files")
