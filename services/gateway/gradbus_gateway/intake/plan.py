"""The plan of a submission, by the configuration of its stored model."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gradbus.errors import Fault, ModelError, SpecError
from gradbus.objects import ObjectStore
from gradbus.plan import Card, Plan, Workload, make_plan, read_size
from gradbus.spec import RunSpec
from gradbus_gateway.intake.model.outline import write_outline


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """What a plan is made for; lengths are means, None: see `Workload.of`."""

    card: Card
    cards: int
    prompt_tokens: int | None
    response_tokens: int | None


async def plan_of(spec: RunSpec, question: PlanQuestion, objects: ObjectStore) -> Plan:
    """The plan of a spec that was accepted. Raises SpecError for a model whose sizes its files do not tell."""
    try:
        with tempfile.TemporaryDirectory(prefix="gradbus-plan-") as name:
            await write_outline(objects, spec.model.files or {}, Path(name))
            size = await asyncio.to_thread(read_size, Path(name))
    except ModelError as error:
        raise SpecError([Fault("model", str(error), spec.model.source)]) from error
    workload = Workload.of(spec, question.prompt_tokens, question.response_tokens)
    return await asyncio.to_thread(make_plan, spec, size, workload, question.card, question.cards)
