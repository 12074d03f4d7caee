"""What hostile users do with runs that were accepted: their specs are good, what follows is not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from gradbus.client import Client, document
from gradbus.control.runs import FINAL_STATES
from gradbus.errors import ApiError
from gradbus_hostile.table.submission import CANCELLED, DELETED, HARMLESS, REFUSED, Conduct, End, Submission

_TIMES: Final = 40
_AT_ONCE: Final = 8
_LONG: Final = {"schedule": {"steps": 30, "groups_per_step": 4}, "checkpoint": {"every": 1}}
_NOBODY: Final = "http://127.0.0.1:9/score"
_LOOK_SECONDS: Final = 0.1


def _tried(act: Callable[[], object]) -> None:
    """Runs one request; an answer 4xx is an answer. Raises what says that the gateway failed."""
    try:
        act()
    except ApiError as error:
        if error.status >= 500:
            raise


def _at_once(*acts: Callable[[], object]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(_tried, acts))


def _until(client: Client, run_id: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Waits until the run is in a condition or has ended."""
    while not condition(run := document(client.run(run_id))) and run["state"] not in FINAL_STATES:
        time.sleep(_LOOK_SECONDS)


def _storm(client: Client, run_id: str) -> None:
    for _ in range(_TIMES):
        _tried(lambda: client.pause(run_id))
        _tried(lambda: client.resume(run_id))


def _storm_at_once(client: Client, run_id: str) -> None:
    _at_once(*[lambda: client.pause(run_id), lambda: client.resume(run_id)] * _TIMES)
    _tried(lambda: client.resume(run_id))


def _storm_and_cancel(client: Client, run_id: str) -> None:
    _at_once(*[lambda: client.pause(run_id), lambda: client.resume(run_id)] * _TIMES, lambda: client.cancel(run_id))


def _cancel_at_once(client: Client, run_id: str) -> None:
    _at_once(*[lambda: client.cancel(run_id)] * _AT_ONCE)


def _cancel_in_the_first_step(client: Client, run_id: str) -> None:
    _until(client, run_id, lambda run: run["progress"]["step"] > 0)
    _tried(lambda: client.cancel(run_id))


def cancel_while_it_waits_for_rewards(client: Client, run_id: str) -> None:
    """Cancels a run whose scorer fails."""
    _until(client, run_id, lambda run: run["state"] == "waiting_for_reward")
    _tried(lambda: client.cancel(run_id))


def cancel_while_all_groups_are_late(client: Client, run_id: str) -> None:
    """Cancels a run none of whose groups is ready in time. By itself it goes on: its scorer may only be away."""
    _until(client, run_id, lambda run: "ready in time" in run["reason"])
    _tried(lambda: client.cancel(run_id))


def _pause_and_cancel(client: Client, run_id: str) -> None:
    _until(client, run_id, lambda run: run["progress"]["step"] > 0)
    _tried(lambda: client.pause(run_id))
    _until(client, run_id, lambda run: run["state"] == "paused")
    _tried(lambda: client.cancel(run_id))


def _delete_while_it_runs(client: Client, run_id: str) -> None:
    """Which is refused; then cancels it."""
    _until(client, run_id, lambda run: run["progress"]["step"] > 0)
    _at_once(*[lambda: client.delete(run_id)] * _AT_ONCE)
    client.cancel(run_id)


def _delete(client: Client, run_id: str) -> None:
    """Cancels and deletes at once until it is gone, then asks for what is not there any more."""
    with contextlib.suppress(ApiError):
        while True:
            _at_once(lambda: client.cancel(run_id), *[lambda: client.delete(run_id)] * 3)
            client.run(run_id)
    for act in (client.resume, client.pause, client.cancel, client.delete, client.events_page, client.samples_page, client.versions_page):
        _tried(partial(act, run_id))


def _resume_when_it_is_over(client: Client, run_id: str) -> None:
    _tried(lambda: client.cancel(run_id))
    _until(client, run_id, lambda _run: False)
    _at_once(*[lambda: client.resume(run_id), lambda: client.pause(run_id)] * _AT_ONCE)


def _delete_its_twin(client: Client, run_id: str) -> None:
    """A second run with the same files is cancelled and deleted, while the first needs them."""
    spec = document(client.run(run_id))["spec"]
    _delete(client, client.submit(spec).id)


def _submit_its_twins(client: Client, run_id: str) -> None:
    """Twenty runs with one idempotency key at once, of two bodies."""
    spec = document(client.run(run_id))["spec"]
    bodies = [spec | {"name": f"twin-{number % 2}"} for number in range(20)]
    _at_once(*(partial(_submit_and_cancel, client, body, run_id) for body in bodies))


def _submit_and_cancel(client: Client, spec: dict[str, Any], key: str) -> None:
    client.cancel(client.submit(spec, idempotency_key=key).id)


def _read_all_of_it(client: Client, run_id: str) -> None:
    """Asks for samples, events and versions again and again while the run makes them."""
    for _ in range(_TIMES):
        samples = partial(client.samples_page, run_id, limit=1000, include="tokens")
        _at_once(samples, partial(client.events_page, run_id, limit=1000), partial(client.versions_page, run_id))


def _good(name: str, ends: frozenset[End], conduct: Conduct, **changes: Any) -> Submission:
    return Submission(f"conduct: {name}", lambda material: material.spec(**(_LONG | changes)), ends, conduct)


CONDUCTS: Final = (
    _good("paused and resumed forty times", HARMLESS, _storm),
    _good("paused and resumed by many at once", HARMLESS, _storm_at_once),
    _good("paused, resumed and cancelled at once", CANCELLED, _storm_and_cancel),
    _good("cancelled eight times at once", CANCELLED, _cancel_at_once),
    _good("cancelled in its first step", CANCELLED, _cancel_in_the_first_step, schedule={"steps": 100_000}),
    _good("cancelled while it is paused", CANCELLED, _pause_and_cancel, schedule={"steps": 100_000}),
    _good("deleted while it runs", CANCELLED, _delete_while_it_runs, schedule={"steps": 100_000}),
    _good("cancelled and deleted", DELETED, _delete, schedule={"steps": 100_000}),
    _good("resumed after its end", CANCELLED, _resume_when_it_is_over),
    _good("its twin is deleted", HARMLESS, _delete_its_twin),
    _good("twins with one idempotency key", HARMLESS, _submit_its_twins),
    _good("read again and again", HARMLESS, _read_all_of_it),
    _good(
        "a scorer that nobody serves",
        CANCELLED | REFUSED,  # where a scorer on loopback is not allowed
        cancel_while_it_waits_for_rewards,
        reward={"service": _NOBODY, "timeout_seconds": 1.0},
    ),
)
