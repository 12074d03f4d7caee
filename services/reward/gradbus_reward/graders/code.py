"""Programs that the policy writes, against hidden tests in sandboxes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

from gradbus.errors import GraderError
from gradbus.graders import ScoreResult, Template
from gradbus.sandbox.commands.run import Level, NoSandboxError, SandboxError, run_command
from gradbus.spec import CodeGrader
from gradbus_reward.built_in.texts import last_fenced
from gradbus_reward.graders.base import NOT_REACHED, Owner, Parts, Sample, not_gradable, template_inputs
from gradbus_reward.graders.code_tests import TestsError, Trial, trial
from gradbus_reward.graders.side_by_side import graded_side_by_side
from gradbus_reward.sandbox.programs import Sandboxes

_WAITING: Final = 64
"""Trials of one run that are prepared at once: each holds its tests."""
_LEAST_SHARE: Final = 0.5
"""Of a call's deadline: with less no program is tried, for it would fail tests for want of time that others took."""
_WALL_SHARE: Final = 0.75
"""Of the time left: what a program may take by the clock, so that one that hangs on every test is scored in the call it begins."""


class CodeParts:
    """Tries the programs of a call side by side."""

    def __init__(self, parts: Mapping[str, CodeGrader], sandboxes: Sandboxes, owner: Owner) -> None:
        """Raises GraderError for a template that is not well formed."""
        self._parts = {name: (part, Template(part.input), Template(part.tests)) for name, part in parts.items()}
        self._sandboxes = sandboxes
        self._least_seconds = _LEAST_SHARE * owner.timeout_seconds
        self._rounds = math.ceil(len(parts) / sandboxes.limit)
        self._waiting = asyncio.Semaphore(_WAITING)

    @property
    def names(self) -> Sequence[str]:
        """Its parts."""
        return tuple(self._parts)

    async def grade(self, samples: Sequence[Sample], seconds: float) -> Sequence[Parts]:
        """The results of every sample; those that were not tried in time are an error. Raises SandboxError."""
        begin = time.monotonic()
        try:
            level = await self._sandboxes.level.get()
        except NoSandboxError as error:
            return [dict.fromkeys(self.names, ScoreResult.error(str(error), permanent=True)) for _ in samples]
        left = seconds - (time.monotonic() - begin)
        if left < self._least_seconds:
            return [dict.fromkeys(self.names, NOT_REACHED) for _ in samples]
        wall = _WALL_SHARE * left / self._rounds  # all parts of a sample are scored in one call
        return await graded_side_by_side(self.names, samples, left, lambda name, sample: self._result(name, sample, level, wall))

    async def close(self) -> None:
        """Nothing to close: a sandbox ends with its program."""

    async def _result(self, name: str, sample: Sample, level: Level, wall_seconds: float) -> ScoreResult:
        part = self._parts[name][0]
        async with self._waiting:
            try:
                tried = self._trial(name, sample, wall_seconds)
            except TestsError as error:
                return ScoreResult.invalid(str(error))
            except (GraderError, ValueError) as error:
                return not_gradable(error)
            async with self._sandboxes.places:
                try:
                    outcome = await run_command(tried.command, level)
                except NoSandboxError as error:
                    return ScoreResult.error(str(error), permanent=True)
                except SandboxError as error:
                    return ScoreResult.error(str(error))
        share = tried.passed(outcome) / tried.tests
        return ScoreResult(float(share == 1.0) if part.needs_all else share)

    def _trial(self, name: str, sample: Sample, wall_seconds: float) -> Trial:
        part, given, tests = self._parts[name]
        fields, item = template_inputs(sample)
        text = given.render(fields, item)
        return trial(last_fenced(text) or text, tests.render(fields, item), part, wall_seconds)
