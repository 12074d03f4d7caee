"""Encodes the first prompts of a submission as a rollout worker will, in a limited process.

Without it, a run whose tokenizer or chat template fails would wait for a trainer and a rollout worker before it could fail.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gradbus.datasets.jsonl import parsed_row
from gradbus.datasets.rows import given_row
from gradbus.datasets.stored import first_rows
from gradbus.errors import DatasetError, Fault, ModelError
from gradbus.lru_cache import LruCache
from gradbus.objects import ObjectStore
from gradbus.spec import EnvironmentSpec, RowColumns, RunSpec
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.errors import ModelFileError, TokenizerProcessError
from gradbus.tokenizer.launcher import ForkServer
from gradbus.tokenizer.tokenizer import Deadlines, NumberedPrompt, Tokenizer, limits_of
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.intake.check_turns import RETRY_SECONDS, CheckTurns
from gradbus_gateway.intake.spelling import Spelling, spelling_of

_ROWS: Final = 200
_ROWS_AT_ONCE: Final = 20
_ROWS_SECONDS: Final = 10.0
_DEADLINES: Final = Deadlines(load=10, call=5)
_CHECKS: Final = 1
"""Checks at a time: a tokenizer's process may take as much memory as all the rest of the gateway."""
_COMPARISONS: Final = 8
"""Comparisons with teachers' servers at a time. They wait for a server, need no process and hold no check."""
_CACHED: Final = 1024

_Key = tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]], tuple[tuple[str, str], ...], RowColumns, PromptLimits, str]
"""Files of the model and of a teacher with another tokenizer, datasets, columns of prompt and responses, limits, policy of thinking."""
CompareServer = Callable[[Spelling, str], Awaitable[Fault | None]]
"""Whether the server at a URL has another tokenizer."""
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json")


class Checked(NamedTuple):
    """What the check of a submission found."""

    fault: Fault | None
    spelling: Spelling | None = None
    """The policy's tokens, if a teacher's server is to have the same."""


class PromptCheck:
    """Loads the tokenizers of submissions and encodes the first rows of their datasets. What passed before is not checked again."""

    def __init__(self, objects: ObjectStore, tokenizers: ForkServer, compare: CompareServer) -> None:
        self._objects = objects
        self._compare = compare
        self._tokenizers = tokenizers
        self._turns = CheckTurns(_CHECKS)
        self._comparisons = CheckTurns(_COMPARISONS)
        self._passed = LruCache[_Key, bool](_CACHED)

    async def fault(self, spec: RunSpec, caller: str) -> Fault | None:
        """The first fault of a spec whose model and data are stored. Raises the problem 503 if this gateway is too busy to tell."""
        files, limits = spec.model.files or {}, limits_of(spec)
        small = frozenset(item for item in files.items() if not item[0].endswith(".safetensors"))
        teacher = frozenset(item for item in _other_tokenizer(spec).items() if not item[0].endswith(".safetensors"))
        thinking = "no turns" if (environment := _template_turns(spec)) is None else environment.thinking or "unset"
        key = (small, teacher, tuple(spec.data.digests.items()), spec.columns, limits, thinking)
        if self._has_passed(key, spec):
            return None
        async with self._turns.turn(caller):
            if self._has_passed(key, spec):
                return None  # an equal submission had its turn before
            checked = await self._checked(spec, limits)
            if checked.fault is None:
                self._passed.put(key, True)
        return checked.fault or await self._server_fault(spec, checked.spelling, caller)

    def _has_passed(self, key: _Key, spec: RunSpec) -> bool:
        """A teacher's server is asked each time: it may have been started anew with another tokenizer."""
        return bool(self._passed.get(key)) and (spec.teacher is None or spec.teacher.url is None)

    async def _server_fault(self, spec: RunSpec, spelling: Spelling | None, caller: str) -> Fault | None:
        """Whether the teacher's server has another tokenizer. The tokenizer's process has ended, and others are checked meanwhile."""
        if spelling is None or spec.teacher is None or spec.teacher.url is None:
            return None
        async with self._comparisons.turn(caller):
            return await self._compare(spelling, spec.teacher.url)

    async def _checked(self, spec: RunSpec, limits: PromptLimits) -> Checked:
        with tempfile.TemporaryDirectory(prefix="gradbus-tokenizer-") as name:
            await self._write_folder(Path(name), spec.model.files or {})
            try:
                tokenizer = await Tokenizer.open(self._tokenizers, Path(name), limits, _DEADLINES)
                try:
                    fault = await _thinking_fault(tokenizer, spec) or await self._rows_fault(tokenizer, spec)
                    fault = fault or await self._teacher_fault(tokenizer, spec)
                    is_compared = fault is None and spec.teacher is not None and spec.teacher.url is not None
                    return Checked(fault, await spelling_of(tokenizer) if is_compared else None)
                finally:
                    await tokenizer.close()
            except ModelFileError as error:
                return Checked(Fault(f"model.files.{error.file}", error.text, spec.model.source))
            except ModelError as error:
                return Checked(Fault("model", str(error), spec.model.source))
            except TokenizerProcessError as error:
                detail = f"the prompts cannot be checked ({error}); send the run again later"
                raise ProblemError(503, "busy", detail, retry_after=RETRY_SECONDS) from error

    async def _rows_fault(self, tokenizer: Tokenizer, spec: RunSpec) -> Fault | None:
        deadline, data = time.monotonic() + _ROWS_SECONDS, spec.data
        for field, digest in data.digests.items():
            try:
                await self._check_first_rows(tokenizer, await self._first_rows(digest, spec.columns), deadline)
            except DatasetError as error:
                return Fault(f"data.{field}", str(error), digest)
        return None

    async def _teacher_fault(self, tokenizer: Tokenizer, spec: RunSpec) -> Fault | None:
        """Whether a teacher's tokens have other ids than the policy's, which it is to judge."""
        if not (files := _other_tokenizer(spec)):
            return None
        with tempfile.TemporaryDirectory(prefix="gradbus-tokenizer-") as name:
            await self._write_folder(Path(name), files)
            try:
                difference = await tokenizer.difference(Path(name))
            except ModelFileError as error:
                return Fault(f"teacher.files.{error.file}", error.text)
        if not difference:
            return None
        message = "judges the policy's tokens by their ids, and its tokenizer is another one"
        return Fault("teacher.files.tokenizer.json", message, difference, "a teacher with the id of the policy's tokenizer for each token")

    async def _first_rows(self, digest: str, columns: RowColumns) -> list[NumberedPrompt]:
        found = await first_rows(self._objects, digest, _ROWS)

        def read() -> list[NumberedPrompt]:
            given = [(line, given_row(parsed_row(row, f"line {line}"), columns, f"line {line}")) for line, row in enumerate(found, start=1)]
            if columns.label is not None and given and all(row.prompt == given[0][1].prompt for _, row in given):
                raise DatasetError(
                    f"the first {len(given)} rows have the same prompt, and a labelled response is compared with one to another prompt; "
                    "add rows with other prompts, or mix the rows"
                )
            return [NumberedPrompt(line, row.prompt, row.responses, row.label) for line, row in given]

        return await asyncio.to_thread(read)  # because a row may have a megabyte of JSON

    async def _check_first_rows(self, tokenizer: Tokenizer, prompts: list[NumberedPrompt], deadline: float) -> None:
        """At least some; at the deadline the tokenizer is slow, and yet it works."""
        for start in range(0, len(prompts), _ROWS_AT_ONCE):
            await tokenizer.check(prompts[start : start + _ROWS_AT_ONCE])
            if time.monotonic() > deadline:
                break

    async def _write_folder(self, folder: Path, files: Mapping[str, str]) -> None:
        """The files that a tokenizer reads, and empty ones in place of the weights."""
        for file, digest in files.items():
            content = b"" if file.endswith(".safetensors") else await self._objects.get_blob(digest)
            await asyncio.to_thread((folder / file).write_bytes, content)


async def _thinking_fault(tokenizer: Tokenizer, spec: RunSpec) -> Fault | None:
    """Whether the chat template would change what the policy thought, in a way that the run does not say."""
    if (environment := _template_turns(spec)) is None:
        return None
    try:
        await tokenizer.check_thinking(environment.thinking)
    except ModelFileError as error:
        return Fault("environment.thinking", error.text, environment.thinking or "unset", '"template", "strip" or "keep"')
    return None


def _template_turns(spec: RunSpec) -> EnvironmentSpec | None:
    """The environment, if its turns follow each other as the chat template writes them."""
    environment = spec.environment
    return None if environment is None or environment.tool_parser == "plain" else environment


def _other_tokenizer(spec: RunSpec) -> Mapping[str, str]:
    """Files of a teacher whose tokenizer is not that of the model, byte for byte; else none."""
    mine = spec.model.files or {}
    theirs = spec.teacher.files or {} if spec.teacher and spec.teacher.url is None else mine
    return theirs if any(mine.get(name) != theirs.get(name) for name in _TOKENIZER_FILES) else {}
