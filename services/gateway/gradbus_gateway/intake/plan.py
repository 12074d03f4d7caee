"""The plan of a submission, by the configuration of its stored model."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.errors import Fault, ModelError, SpecError
from gradbus.objects import ObjectStore
from gradbus.plan import Card, ModelSize, Plan, Workload, make_plan, read_size
from gradbus.spec import RunSpec
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.model.outline import write_outline

PLANS_AT_A_TIME: Final = 1
"""A plan reads up to 16 MiB of headers; of a thousand cards it takes a tenth of a second of the interpreter, which all requests share."""


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """What a plan is made for; lengths are means, None: see `Workload.of`."""

    card: Card
    cards: int
    prompt_tokens: int | None
    response_tokens: int | None


class Planner:
    """Makes the plans of accepted specs, in `turns`."""

    def __init__(self, objects: ObjectStore, turns: CheckTurns) -> None:
        self._objects = objects
        self._turns = turns

    async def plan(self, spec: RunSpec, question: PlanQuestion, caller: str) -> Plan:
        """The plan for the API key `caller`.

        Raises SpecError for a model whose sizes its files do not tell, and the problem 503 if this gateway is too busy.
        """
        async with self._turns.turn(caller):
            size = await self._size(spec)
            workload = Workload.of(spec, question.prompt_tokens, question.response_tokens)
            return await asyncio.to_thread(make_plan, spec, size, workload, question.card, question.cards)

    async def _size(self, spec: RunSpec) -> ModelSize:
        try:
            with tempfile.TemporaryDirectory(prefix="gradbus-plan-") as name:
                await write_outline(self._objects, spec.model.files or {}, Path(name))
                return await asyncio.to_thread(read_size, Path(name))
        except ModelError as error:
            raise SpecError([Fault("model", str(error), spec.model.source)]) from error
