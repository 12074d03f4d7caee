"""Sends the hostile submissions, waits for their ends, and compares those with what the table allows."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from gradbus.client import Client, document
from gradbus.control.runs import FINAL_STATES
from gradbus.errors import ApiError, GradbusError, SpecError
from gradbus.ids import digest_of
from gradbus_hostile.clients import HostileClient
from gradbus_hostile.material import Json, Material
from gradbus_hostile.table.submission import Submission
from gradbus_hostile.target import Target

FINAL: Final = FINAL_STATES | {"deleted"}
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Ended:
    """How a hostile submission ended."""

    submission: Submission
    end: str
    """`refused`, `broke` (the gateway failed), `deleted`, a final state, or the state in which it still was at the deadline."""
    cause: str
    seconds: float
    """From the moment at which it had a trainer, or was sent, to its end."""

    @property
    def is_allowed(self) -> bool:
        """Whether the table allows this end; a run that failed names its cause."""
        return self.end in self.submission.ends and (self.end not in {"refused", "failed"} or bool(self.cause))


@dataclass(slots=True)
class _Accepted:
    submission: Submission
    conduct: asyncio.Future[None]
    """What the user does with the run."""
    began: float


async def submit_all(client: Client, material: Material, submissions: Sequence[Submission], seconds: float) -> list[Ended]:
    """Submits one after the other and waits until each has ended, at most `seconds` without any of them ending."""
    ends: list[Ended] = []
    waiting: dict[str, _Accepted] = {}
    users = ThreadPoolExecutor(max(1, len(submissions)), "user")  # they wait, so none may wait for another's thread
    for submission in submissions:
        body = await asyncio.to_thread(submission.body, material)
        began = time.monotonic()
        try:
            run = await asyncio.to_thread(send, client, body, material)
        except GradbusError as error:
            ends.append(Ended(submission, _refusal(error), str(error), time.monotonic() - began))
        else:
            conduct = asyncio.get_running_loop().run_in_executor(users, submission.conduct, client, run["id"])
            waiting[run["id"]] = _Accepted(submission, conduct, time.monotonic())
    ends += await _until_ended(client, waiting, seconds)
    users.shutdown(wait=False, cancel_futures=True)
    return ends


def send(client: Client, body: Json, material: Material) -> Json:
    """Submits a body with its damaged files as they are: `Client.submit` alone would refuse them before the gateway sees them."""
    body = copy.deepcopy(body)
    data = body["data"]
    for model in (body["model"], body.get("reward", {}).get("model") or {}):
        if folder := material.own(model.get("path")):
            model["files"] = {file.name: _uploaded(client, file) for file in sorted(folder.iterdir())}
    for field in ("train", "eval"):
        if path := material.own(data.get(field)):
            data[field] = _uploaded(client, path)
    return document(client.submit(body))


def _uploaded(client: Client, path: Path) -> str:
    digest = digest_of(path.read_bytes())
    client.upload(path, digest)
    return digest


def _refusal(error: GradbusError) -> str:
    """`refused`, or `broke` if the gateway itself failed."""
    return "refused" if isinstance(error, SpecError) or (isinstance(error, ApiError) and error.status < 500) else "broke"


async def _until_ended(client: Client, waiting: dict[str, _Accepted], seconds: float) -> list[Ended]:
    ends: list[Ended] = []
    last_end = time.monotonic()
    while waiting:
        stuck = time.monotonic() - last_end > seconds
        for run_id, accepted in list(waiting.items()):
            run = await asyncio.to_thread(_run, client, run_id)
            if (run["state"] in FINAL and accepted.conduct.done()) or stuck:
                ends.append(await _ended(client, run, accepted))
                if stuck and run["state"] not in FINAL:
                    await asyncio.to_thread(client.cancel, run_id)  # the next ones may have its trainer
                del waiting[run_id]
                last_end = time.monotonic()
        await asyncio.sleep(_POLL_SECONDS)
    return ends


def _run(client: Client, run_id: str) -> Json:
    try:
        return document(client.run(run_id))
    except ApiError as error:
        if error.status != 404:
            raise
        return {"state": "deleted", "reason": "", "waiting_for": ""}


async def _ended(client: Client, run: Json, accepted: _Accepted) -> Ended:
    end, cause = run["state"], run["reason"] or run["waiting_for"]
    if accepted.conduct.done() and (failure := accepted.conduct.exception()):
        end, cause = "broke", str(failure)
    if run["state"] in FINAL_STATES:
        return Ended(accepted.submission, end, cause, await asyncio.to_thread(_busy_seconds, client, run))
    return Ended(accepted.submission, end, cause, time.monotonic() - accepted.began)


def _busy_seconds(client: Client, run: Json) -> float:
    """From the moment at which the run had a trainer, or was submitted, to its end, by the services' clocks."""
    states = [event for event in map(document, client.events(run["id"])) if event["type"] == "state"]
    began = next((event["created_at"] for event in states if event["data"]["state"] not in {"queued", "paused"}), run["created_at"])
    return max(0.0, _unix(run["finished_at"]) - _unix(began))


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


@asynccontextmanager
async def attacked(target: Target, clients: Iterable[HostileClient]) -> AsyncIterator[None]:
    """Runs the hostile clients inside the block. Raises RuntimeError for a client that ended: what it stands for was not tried."""
    tasks = {asyncio.create_task(client.attack(target), name=client.name): client for client in clients}
    try:
        yield
    finally:
        over = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if over:
        raise RuntimeError(
            f"these hostile clients ended too early: {', '.join(f'{task.get_name()}: {task.exception()!r}' for task in over)}"
        )


@dataclass(frozen=True, slots=True)
class Trained:
    """A well-behaved run that succeeded."""

    run_id: str
    digest: str
    steps_per_second: float
    """From its first step to its last."""
    queued_seconds: float


async def train(client: Client, spec: Json) -> Trained:
    """Trains a well-behaved run to its end. Raises AssertionError if it does not succeed."""
    run_id = (await asyncio.to_thread(client.submit, spec)).id
    while (run := document(await asyncio.to_thread(client.run, run_id)))["state"] not in FINAL_STATES:  # noqa: ASYNC110 - it is asked, it does not signal
        await asyncio.sleep(_POLL_SECONDS)
    if run["state"] != "succeeded":
        raise AssertionError(f"the well-behaved run is {run['state']}: {run['reason']}")
    return await asyncio.to_thread(_trained, client, run)


def _trained(client: Client, run: Json) -> Trained:
    events = list(map(document, client.events(run["id"])))
    steps = sorted(_unix(event["created_at"]) for event in events if event["type"] == "metrics")
    states = [event for event in events if event["type"] == "state" and event["data"]["state"] != "queued"]
    newest = document(client.versions_page(run["id"], after=run["steps"] - 1))["data"][-1]
    rate = (len(steps) - 1) / (steps[-1] - steps[0])
    return Trained(run["id"], newest["digest"], rate, _unix(states[0]["created_at"]) - _unix(run["created_at"]))


def newest(client: Client, name: str) -> str:
    """Id of the newest run of that name: the one in progress, if there is one."""
    return next(str(run["id"]) for run in map(document, client.runs()) if run["name"] == name)
