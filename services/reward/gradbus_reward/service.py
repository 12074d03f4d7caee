"""The gRPC face of the scorers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from pydantic import ValidationError

from gradbus.errors import ScorerError
from gradbus.process import Process
from gradbus.rpc import RpcServer
from gradbus.spec import RewardSpec
from gradbus.telemetry import CardinalityLimit, get_logger
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.sandbox.process import GraderProcess
from gradbus_reward.scorers.factory import Scorer, scorer_for
from gradbus_reward.scorers.results import all_failed
from gradbus_reward.scorers.telemetry import Calls, scorer_name
from gradbus_reward.settings import RewardSettings

_log = get_logger(__name__)
_ANSWER_SECONDS = 0.2  # what is left of the caller's deadline to bring the answers home
_DEFAULT_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 5.0
_NAMES = 16
"""Scorers that metrics tell apart; their addresses are the users'."""


@dataclass(slots=True)
class _Kept:
    scorer: Scorer
    timeout_seconds: float
    turns: asyncio.Semaphore
    calls: Calls
    users: int = field(default=0)


class Scorers:
    """Scorers by the run's `[reward]` section. Beyond the bound those that nobody uses are closed, the longest unused first."""

    def __init__(self, settings: RewardSettings) -> None:
        self._settings = settings
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._name = CardinalityLimit(_NAMES)

    @asynccontextmanager
    async def use(self, reward_json: str) -> AsyncIterator[_Kept]:
        """The scorer, which stays open inside the block."""
        if reward_json not in self._kept:
            scorer, seconds = scorer_for(reward_json, self._settings.scorer), _timeout_seconds(reward_json)
            calls = Calls(self._name(scorer_name(reward_json)))
            self._kept[reward_json] = _Kept(scorer, seconds, asyncio.Semaphore(self._settings.calls_per_scorer), calls)
        kept = self._kept[reward_json]
        self._kept.move_to_end(reward_json)
        kept.users += 1
        kept.calls.waiting(1)
        try:
            await self._close_surplus()
            yield kept
        finally:
            kept.users -= 1
            kept.calls.waiting(-1)

    async def close(self) -> None:
        """Closes all."""
        while self._kept:
            await self._kept.popitem()[1].scorer.close()

    async def _close_surplus(self) -> None:
        idle = [key for key, kept in self._kept.items() if kept.users == 0]
        # All are taken out before the first is closed: meanwhile others come for a scorer.
        for kept in [self._kept.pop(key) for key in idle[: max(0, len(self._kept) - self._settings.scorers)]]:
            await kept.scorer.close()
            _log.info("scorer_closed", reason="unused for longest")


class RewardService(RewardServiceServicer):
    """Scores whole groups, as many as a caller has waiting. A scorer's failure is an answer, never a failed call."""

    def __init__(self, scorers: Scorers) -> None:
        self._scorers = scorers

    async def Score(self, request: ScoreRequest, context: grpc.aio.ServicerContext[Any, Any]) -> ScoreResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        async with self._scorers.use(request.reward_json) as kept, kept.turns:
            # Taken after the wait for a turn: the caller's clock has gone on.
            seconds = min(kept.timeout_seconds, (context.time_remaining() or _DEFAULT_SECONDS) - _ANSWER_SECONDS)
            if seconds <= 0:
                reason = "no time was left when the scorer had a turn; raise reward.timeout_seconds or add reward services"
                return ScoreResponse(results=all_failed(request.samples, reason, "timeout"))
            with kept.calls.measured():
                results = await kept.scorer.score(request, seconds)
            kept.calls.answered(results)
            return ScoreResponse(results=results)


async def serve(settings: RewardSettings, process: Process) -> None:
    """Serves until the process is asked to stop, then finishes what is in flight."""
    if settings.python_graders:
        await _report_confinement(settings.scorer.pool)
    scorers = Scorers(settings)
    server = RpcServer(settings.rpc)
    add_RewardServiceServicer_to_server(RewardService(scorers), server.server)
    await server.start()
    process.ready = await _found_chosen(settings, process.stopping)
    await process.stopping.wait()
    await server.stop()
    await scorers.close()


async def _found_chosen(settings: RewardSettings, stopping: asyncio.Event) -> bool:
    """Waits until the operator's scorer has an address, for every run would wait for it; False when told to stop before."""
    while settings.reward_service and not stopping.is_set():
        try:
            await settings.addresses.resolve(settings.reward_service)
            break
        except ScorerError as error:
            _log.error("scorer_not_found", error=f"REWARD_SERVICE={settings.reward_service}: {error}; start it, on the network of scorers")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _LOOK_AGAIN_SECONDS)
    return not stopping.is_set()


async def _report_confinement(pool: PoolSettings) -> None:
    """Says at the start which layers hold here, for containers and kernels differ in what they allow."""
    try:
        process = await GraderProcess.start({}, allow_network=pool.allow_unisolated_network)
    except ScorerError as error:
        _log.error("python_graders_cannot_run", error=str(error))
        return
    layers = process.layers
    await process.stop()
    report = _log.info if layers.landlock else _log.warning
    report("graders_confined", seccomp=layers.seccomp, landlock=layers.landlock, namespace=layers.namespace)


def _timeout_seconds(reward_json: str) -> float:
    try:
        return RewardSpec.model_validate_json(reward_json).timeout_seconds
    except ValidationError:
        return _DEFAULT_SECONDS  # such a section gives a scorer that refuses at once
