"""What takes several requests, written once for both clients: each step is a request, whose answer comes back, or a pause in seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Generic, TypeVar

from gradbus.client.calls import LARGEST_PAGE, Call, HistoryPart, get_history, get_run, list_runs
from gradbus.control.runs import FINAL_STATES
from gradbus.errors import GradbusError, NotFoundError, RunNameError
from gradbus.resources.history import HistoryResource
from gradbus.resources.page import Page
from gradbus.resources.runs import RunResource, RunSummary

Result = TypeVar("Result")
Item = TypeVar("Item")
Steps = Generator[Call[Any] | float, Any, Result]
_RUN_ID = re.compile(r"run-[0-9a-f]{12}-[0-9a-f]{6}")
_NAMED = 5
_HISTORY_SECONDS = 1.0
"""Between two requests for a history that the gateway still reads."""


class Driven(Generic[Result]):
    """Steps that a client does one after the other. It sets `answer` or `error` after each, and the error is raised in the steps."""

    def __init__(self, work: Steps[Result]) -> None:
        self._work = work
        self.answer: object = None
        self.error: GradbusError | None = None
        self.result: Result

    def next(self) -> Call[Any] | float | None:
        """The next step; None at the end, with which there is a `result`. Raises what the steps raise."""
        answer, error = self.answer, self.error
        self.answer = self.error = None
        try:
            return self._work.throw(error) if error else self._work.send(answer)
        except StopIteration as end:
            self.result = end.value
            return None


def find_id(given: str) -> Steps[str]:
    """The id of a run; a whole id is not looked up."""
    if _RUN_ID.fullmatch(given):
        return given
    return (yield from find_run(given)).id


def of_run(given: str, call: Callable[[str], Call[Result]]) -> Steps[Result]:
    """The answer to the call for the id of a run."""
    run_id = yield from find_id(given)
    answer: Result = yield call(run_id)
    return answer


def find_run(given: str) -> Steps[RunSummary]:
    """The run with the id or name `given`: the newest one of a name, or the only one whose id begins with it; the newest of all is `last`.

    Raises RunNameError when no run or more than one matches.
    """
    page: Page[RunSummary] = yield list_runs()
    known = page.data
    if not known:
        raise RunNameError("there are no runs yet; submit one with `gradbus run SPEC.toml`")
    if given == "last":
        return known[0]
    exact = [run for run in known if run.id == given] or [run for run in known if run.name == given]
    if exact:
        return exact[0]
    found = [run for run in known if given and run.id.startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(run.id for run in found[:_NAMED])
        raise RunNameError(f"{given!r} is the beginning of {len(found)} run ids: {ids}; give more characters")
    return (yield from _older(given, page.has_more))


def _older(given: str, has_more: bool) -> Steps[RunSummary]:
    """A run that is not among the newest, which can be found only by its full id."""
    if has_more and _RUN_ID.fullmatch(given):
        try:
            run: RunResource = yield get_run(given)
        except NotFoundError:
            pass
        else:
            return run
    where = f" among the newest {LARGEST_PAGE:,}; give the full id of an older one" if has_more else ""
    raise RunNameError(f"no run is called {given!r}{where}; `gradbus runs` lists them")


def wait(given: str, seconds: float | None, poll_seconds: float) -> Steps[RunResource]:
    """The run, once it has ended. Raises TimeoutError if it has not after `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    run_id = yield from find_id(given)
    while True:
        run: RunResource = yield get_run(run_id)
        if run.state in FINAL_STATES:
            return run
        if deadline is not None and time.monotonic() >= deadline:
            reason = run.waiting_for and f", waits for {run.waiting_for}"
            raise TimeoutError(
                f"run {run.id} is {run.state} at step {run.progress.step} of {run.steps} after {seconds:g} s{reason}; it goes on: wait "
                "again, or cancel it"
            )
        yield float(poll_seconds)


def history(given: str, part: HistoryPart, seconds: float | None) -> Steps[HistoryResource]:
    """A part of a run's history, once the gateway has read all events. Raises TimeoutError if it has not after `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    run_id = yield from find_id(given)
    while True:
        found: HistoryResource = yield get_history(run_id, part)
        if found.is_whole:
            return found
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(
                f"the gateway has read the events of {run_id} up to id {found.newest} after {seconds:g} s; it reads on: ask again, or give "
                "more seconds"
            )
        yield _HISTORY_SECONDS


def next_page(call: Call[Page[Item]], page: Page[Item]) -> Call[Page[Item]] | None:
    """The request of the page after this one; None after the last."""
    return replace(call, params={**call.params, "after": page.next_after}) if page.has_more else None
