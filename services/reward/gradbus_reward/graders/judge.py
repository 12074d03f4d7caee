"""Judges: language models behind OpenAI's chat completions, which give a response a number by a rubric."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from gradbus.errors import BusyServiceError, GraderError, UserCodeError
from gradbus.graders import ScoreResult, Template
from gradbus.spec import ScoreModelGrader
from gradbus.user_services.addresses import AddressPolicy, shown
from gradbus.user_services.http import FAILURES, BodyBounds, HttpClient, HttpRequest
from gradbus.user_services.keys import ServiceKeys
from gradbus_reward.graders.base import Owner, Parts, Sample, not_gradable, template_inputs
from gradbus_reward.graders.side_by_side import graded_side_by_side
from gradbus_reward.graders.verdicts import PartId, Verdicts

_AT_ONCE: Final = 32
"""Calls of one run in progress."""
_BOUNDS: Final = BodyBounds(4 << 20, 1 << 14, "lower max_tokens")
_WAIT_SECONDS: Final = 0.5
"""After a call that failed; twice as long after the next one."""
_MAX_SHOWN: Final = 120
_NUMBER: Final = re.compile(r"(?:score\s*[:=]\s*)?(-?[0-9]{1,20}(?:\.[0-9]{1,20})?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class JudgeAccess:
    """Where judges may be, and the keys that the operator gives them."""

    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    keys: ServiceKeys = field(default_factory=ServiceKeys)


class NoVerdictError(ValueError):
    """The judge answered, but not with a number in its range."""


class BudgetSpentError(GraderError):
    """A part has made as many calls as it may."""


class _Judge:
    """One part: what its judge is asked, and how."""

    def __init__(self, spec: ScoreModelGrader, access: JudgeAccess, threads: ThreadPoolExecutor, part: PartId) -> None:
        self.spec = spec
        self.part = part
        self.url = f"{spec.url.rstrip('/')}/chat/completions"
        self.name = f"the judge at {shown(spec.url)}"
        self.headers = access.keys.headers(spec.url)
        self.client = HttpClient(self.name, access.addresses, threads)
        self._templates = [("system", Template(spec.system))] if spec.system is not None else []
        self._templates.append(("user", Template(spec.input)))

    def body(self, sample: Sample) -> bytes:
        """The request. Raises GraderError."""
        fields, item = template_inputs(sample)
        messages = [{"role": role, "content": template.render(fields, item)} for role, template in self._templates]
        settings = {"temperature": self.spec.temperature, "max_tokens": self.spec.max_tokens}
        return json.dumps({"model": self.spec.model, "messages": messages, **settings}).encode()

    def question(self, body: bytes) -> bytes:
        """All that a verdict depends on: the address, the range of the number, and the request."""
        return json.dumps([self.url, self.spec.range]).encode() + b"\n" + body


class JudgeParts:
    """Asks judges side by side. What one has said to a request is asked once."""

    def __init__(self, parts: Mapping[str, ScoreModelGrader], access: JudgeAccess, verdicts: Verdicts, owner: Owner) -> None:
        """Raises GraderError for a template that is not well formed."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._judges = {name: _Judge(part, access, self._thread, (owner.run_id, owner.path, name)) for name, part in parts.items()}
        self._verdicts = verdicts
        self._places = asyncio.Semaphore(_AT_ONCE)

    @property
    def names(self) -> Sequence[str]:
        """Its parts."""
        return tuple(self._judges)

    async def grade(self, samples: Sequence[Sample], seconds: float) -> Sequence[Parts]:
        """The results of every sample; those for which no time is left are an error, and what was said to the others is kept."""
        return await graded_side_by_side(self.names, samples, seconds, lambda name, one: self._result(self._judges[name], one, seconds))

    async def close(self) -> None:
        """Closes the connections and the thread."""
        await asyncio.gather(*(judge.client.close() for judge in self._judges.values()))
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _result(self, judge: _Judge, sample: Sample, seconds: float) -> ScoreResult:
        async with self._places:
            try:
                body = await asyncio.get_running_loop().run_in_executor(self._thread, judge.body, sample)
                known = self._verdicts.number(judge.question(body))
                return ScoreResult(await self._asked(judge, body, seconds) if known is None else known)
            except NoVerdictError as error:
                return ScoreResult.invalid(str(error))
            except (GraderError, ValueError) as error:
                return not_gradable(error)
            except FAILURES as error:
                return ScoreResult.error(f"{judge.name} failed: {error or type(error).__name__}; check that it runs")
            except UserCodeError as error:
                return ScoreResult.error(str(error))

    async def _asked(self, judge: _Judge, body: bytes, seconds: float) -> float:
        """The judge's number. Raises what its last try raised."""
        wait = _WAIT_SECONDS
        for left in reversed(range(judge.spec.tries)):
            if judge.spec.max_calls is not None and self._verdicts.calls(judge.part) >= judge.spec.max_calls:
                raise BudgetSpentError(
                    f"{judge.name} was called {judge.spec.max_calls} times, its max_calls; raise it, or take fewer steps"
                )
            self._verdicts.count(judge.part)
            try:
                answer = await judge.client.call(HttpRequest("POST", judge.url, body, judge.headers), _BOUNDS, seconds)
                number = _verdict(answer, judge)
            except NoVerdictError:
                if not left:
                    raise
                continue  # it may say something else
            except (BusyServiceError, *FAILURES):
                if not left:
                    raise
                await asyncio.sleep(wait)
                wait *= 2
                continue
            self._verdicts.keep(judge.question(body), number)
            return number
        raise NoVerdictError(f"{judge.name} was not asked")


def _verdict(answer: bytes, judge: _Judge) -> float:
    """The number on the last line of an answer. Raises NoVerdictError."""
    content, finish = _content(answer, judge)
    if finish == "length":
        raise NoVerdictError(f"{judge.name} was cut off at max_tokens; raise max_tokens, or ask for a shorter answer in the rubric")
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    found = _NUMBER.fullmatch(lines[-1]) if lines else None
    low, high = judge.spec.range
    if found is None or not low <= float(found[1]) <= high:
        said = repr(lines[-1][:_MAX_SHOWN]) if lines else "nothing"
        raise NoVerdictError(f"{judge.name} said no number from {low:g} to {high:g} on its last line, but {said}; ask for it in the rubric")
    return float(found[1])


def _content(answer: bytes, judge: _Judge) -> tuple[str, Any]:
    """The text of an answer, empty for one without any, and why it ended. Raises GraderError for what is no chat completion."""
    try:
        match json.loads(answer):
            case {"choices": [{"message": {"content": str() | None as content}, **choice}, *_]}:
                return content or "", choice.get("finish_reason")
    except (ValueError, RecursionError):
        pass  # the same as another form
    raise GraderError(f"{judge.name} sent no chat completion; check its url, which ends before /chat/completions")
