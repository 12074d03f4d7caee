"""The process that runs the built-in graders on hostile texts. `sandbox/rows.py` says what it and its parent send.

A part's source is JSON: its `kind`, its settings, and how many `texts` of a row are its own.
"""

from __future__ import annotations

import importlib
import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gradbus.sandbox.bounds import MAX_REASON
from gradbus.sandbox.child import confined_pipes
from gradbus.sandbox.results import Result
from gradbus_reward.built_in.texts import Grade, UngradableError
from gradbus_reward.sandbox.rows import GradeRow, serve

SECONDS = 1.0
"""Of the processor, for one part of one sample."""
_AGAIN_SECONDS = 0.1
_MODULES = {"math": "maths", "regex": "patterns", "json_schema": "schemas"}
_EXTRA = "pip install 'gradbus[graders]' where the reward service runs"


class _OutOfTimeError(BaseException):
    """No Exception, for the libraries catch those."""


def main(kinds: Sequence[str]) -> None:
    """Serves the parent until it closes the pipe. The libraries of `kinds` are imported before the process is confined."""
    modules, missing = _imported(kinds)
    signal.signal(signal.SIGPROF, _out_of_time)
    if pipes := confined_pipes([folder for folder in sys.path if folder]):
        serve(pipes, partial(_loaded, modules, missing))


def _imported(kinds: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    modules: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            modules[kind] = importlib.import_module(f"gradbus_reward.built_in.{_MODULES[kind]}")
        except ImportError as error:
            missing[kind] = f"the grader {kind} lacks a library ({error}); {_EXTRA}"
    return modules, missing


def _loaded(modules: Mapping[str, Any], missing: Mapping[str, str], sources: Mapping[str, str]) -> tuple[GradeRow, dict[str, str]]:
    parts: dict[str, tuple[Grade, int]] = {}
    faults: dict[str, str] = {}
    for part, source in sources.items():
        settings = json.loads(source)
        kind = settings["kind"]
        if kind in missing:
            faults[part] = missing[kind]
            continue
        try:
            parts[part] = modules[kind].compiled(settings), settings["texts"]
        except (UngradableError, re.error, RecursionError, MemoryError) as error:
            faults[part] = (str(error) or type(error).__name__)[:MAX_REASON]
    return partial(_grade, parts), faults


def _grade(parts: Mapping[str, tuple[Grade, int]], row: Sequence[str]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    at = 0
    for part, (grade, count) in parts.items():
        results[part] = _result(grade, row[at : at + count])
        at += count
    return results


def _result(grade: Grade, texts: Sequence[str]) -> Result:
    try:
        with _bounded():
            return grade(*texts), {}
    except _OutOfTimeError:
        signal.setitimer(signal.ITIMER_PROF, 0.0)  # it may have struck before the block's end could stop it
        return f"the grader needed more than {SECONDS:g} s of the processor for this text"
    except UngradableError as error:
        return str(error)[:MAX_REASON]
    except (MemoryError, RecursionError) as error:
        return f"this text is too much for the grader ({type(error).__name__})"
    except Exception as error:  # noqa: BLE001 - the boundary of one sample: a library may raise anything for a hostile text
        return f"the grader cannot grade this text: {type(error).__name__}"


@contextmanager
def _bounded() -> Iterator[None]:
    """Raises _OutOfTimeError in the block after `SECONDS`, and again, for a library may catch it once."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _out_of_time(*_: object) -> None:
    raise _OutOfTimeError
