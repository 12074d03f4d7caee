"""Built-in graders whose time no length of a text bounds: mathematics, regular expressions, JSON Schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, get_args

from gradbus.errors import GraderError
from gradbus.graders import ScoreResult, Template
from gradbus.sandbox.budget import ProcessBudget
from gradbus.spec import JsonSchemaGrader, MathGrader, RegexGrader
from gradbus_reward.graders.base import Parts, Sample, not_gradable, template_inputs
from gradbus_reward.graders.confined import ConfinedParts
from gradbus_reward.sandbox.pool import GraderPool, PoolSettings
from gradbus_reward.sandbox.process import Row, importing

BuiltInGrader = MathGrader | RegexGrader | JsonSchemaGrader
BUILT_IN_GRADERS: Final[tuple[type[Any], ...]] = get_args(BuiltInGrader)


class BuiltInParts:
    """Renders the templates of its parts in a thread, and grades the texts in confined processes."""

    def __init__(self, parts: Mapping[str, BuiltInGrader], settings: PoolSettings, budget: ProcessBudget) -> None:
        """Raises GraderError for a template that is not well formed."""
        self._templates = {name: [Template(text) for text in _templates(part)] for name, part in parts.items()}
        sources = {name: json.dumps(_settings(part, len(self._templates[name]))) for name, part in parts.items()}
        program = importing("gradbus_reward.built_in.child", sorted({part.type for part in parts.values()}))
        self._graders = ConfinedParts(tuple(parts), GraderPool(sources, settings, budget, program))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="render")

    @property
    def names(self) -> Sequence[str]:
        """Its parts."""
        return tuple(self._templates)

    async def grade(self, samples: Sequence[Sample], seconds: float) -> Sequence[Parts]:
        """The results of every sample. Raises SourceError for a part that does not load, such as one without its library."""
        rendered = await asyncio.get_running_loop().run_in_executor(self._thread, self._rendered, samples)
        rows = {n: row for n, row in enumerate(rendered) if not isinstance(row, ScoreResult)}
        ids = [(samples[n].sample_id, hash(samples[n].response)) for n in rows]
        graded = dict(zip(rows, await self._graders.grade_rows(ids, list(rows.values()), seconds) if rows else (), strict=True))
        return [dict.fromkeys(self.names, row) if isinstance(row, ScoreResult) else graded[n] for n, row in enumerate(rendered)]

    async def close(self) -> None:
        """Stops the processes and the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._graders.close()

    def _rendered(self, samples: Sequence[Sample]) -> list[Row | ScoreResult]:
        """The texts of each sample, or the result of one that cannot be graded."""
        parse = cache(json.loads)  # the samples of a group have the same row
        return [self._row(sample, parse) for sample in samples]

    def _row(self, sample: Sample, parse: Callable[[str], Any]) -> Row | ScoreResult:
        try:
            fields, item = template_inputs(sample, parse)
            return tuple(template.render(fields, item) for templates in self._templates.values() for template in templates)
        except (GraderError, ValueError) as error:
            return not_gradable(error)


def _templates(part: BuiltInGrader) -> Iterator[str]:
    """The texts that the part grades: its input, and what it is compared with."""
    yield part.input
    match part:
        case MathGrader(reference=reference):
            yield reference
        case RegexGrader(reference=str(reference)):
            yield reference
        case JsonSchemaGrader(json_schema=str(schema)):
            yield schema


def _settings(part: BuiltInGrader, texts: int) -> dict[str, Any]:
    """What the process is told: see `built_in/child.py`."""
    return {"kind": part.type, "texts": texts, **part.model_dump(exclude={"type", "input", "reference"})}
