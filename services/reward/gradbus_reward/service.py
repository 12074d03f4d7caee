"""The gRPC server of the reward service."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import grpc

from gradbus.errors import UserCodeError
from gradbus.memory.resident import return_memory
from gradbus.process import Process
from gradbus.rpc import RpcServer
from gradbus.spec import split_service
from gradbus.telemetry import get_logger
from gradbus.user_services.addresses import HostUnknownError
from gradbus.v1.reward_pb2 import SampleReward, ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.sandbox.process import GraderProcess
from gradbus_reward.scorers.base import Scorer
from gradbus_reward.scorers.cache import DEFAULT_TIMEOUT_SECONDS, ScorerCache
from gradbus_reward.scorers.relay import remove_abandoned_folders
from gradbus_reward.scorers.results import failed_results
from gradbus_reward.settings import RewardSettings

_log = get_logger(__name__)
_RESPONSE_SECONDS = 0.2  # of the caller's deadline, for the way back
_RETRY_SECONDS = 5.0
_SWITCH_SECONDS = 0.0005
"""After so long a thread that compares texts lets the event loop go on. After Python's 5 ms, each step of every call would wait as long for
the thread of each run that compares long texts: eight of them made it 45 ms, and now 6. It costs the comparisons about 8 %."""
_IDLE_SECONDS = 20.0
"""After its last call a run's scorer is closed: its processes, connections and memory are freed."""


class RewardService(RewardServiceServicer):
    """Scores whole groups, as many as a caller has waiting. A failure of the scorer is a result, never a failed call."""

    def __init__(self, scorers: ScorerCache) -> None:
        self._scorers = scorers

    async def Score(self, request: ScoreRequest, context: grpc.aio.ServicerContext[Any, Any]) -> ScoreResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        async with self._scorers.use(request.run_id, request.reward_json) as entry, entry.slots:
            # Read after the wait for a slot, which takes time from the caller's deadline.
            seconds = min(entry.timeout_seconds, (context.time_remaining() or DEFAULT_TIMEOUT_SECONDS) - _RESPONSE_SECONDS)
            if seconds <= 0:
                reason = "no time was left when the scorer had a free slot; raise reward.timeout_seconds or add reward services"
                return ScoreResponse(results=failed_results(request.samples, reason, "timeout"))
            with entry.metrics.timed():
                results = await _results(entry.scorer, request, seconds)
            entry.metrics.count_results(results)
            return ScoreResponse(results=results)


async def _results(scorer: Scorer, request: ScoreRequest, seconds: float) -> Sequence[SampleReward]:
    try:
        return await scorer.score(request, seconds)
    except Exception as error:  # noqa: BLE001 - the boundary of one call: the run that met this fault fails, and does not wait for ever
        _log.exception("scorer_broke", run_id=request.run_id)
        reason = f"a fault in the reward service: {type(error).__name__}: {error}; see its log"
        return failed_results(request.samples, reason, "grader")


async def serve(settings: RewardSettings, process: Process) -> None:
    """Serves until the process is asked to stop, then finishes the calls in flight."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    await asyncio.to_thread(remove_abandoned_folders)
    if settings.python_graders:
        await _log_confinement(settings.scorer.pool)
    scorers = ScorerCache(settings.scorer, size=settings.scorers, concurrency=settings.calls_per_scorer)
    server = RpcServer(settings.rpc)
    add_RewardServiceServicer_to_server(RewardService(scorers), server.server)
    await server.start()
    process.ready = await _check_operator_scorer(settings, process.stopping)
    while not process.stopping.is_set():
        if await scorers.close_idle(_IDLE_SECONDS):
            await asyncio.to_thread(return_memory)  # large calls leave over a hundred megabytes with the allocator
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_SECONDS / 4):
                await process.stopping.wait()
    await server.stop()
    await scorers.close()


async def _check_operator_scorer(settings: RewardSettings, stopping: asyncio.Event) -> bool:
    """True if the operator's scorer may be called, or has no address yet: it may start after this service, and runs wait for it.

    Waits while its address is one that no scorer may have. False if the process is asked to stop meanwhile.
    """
    while settings.reward_service and not stopping.is_set():
        try:
            await settings.addresses.resolve(split_service(settings.reward_service)[1])
            break
        except HostUnknownError as error:
            _log.warning("scorer_not_found", error=f"REWARD_SERVICE={settings.reward_service}: {error}; start it on the scorers' network")
            break
        except UserCodeError as error:
            _log.error("scorer_refused", error=f"REWARD_SERVICE={settings.reward_service}: {error}; set another address")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                await stopping.wait()
    return not stopping.is_set()


async def _log_confinement(pool: PoolSettings) -> None:
    """Logs which layers of the confinement work here, because containers and kernels differ."""
    try:
        process = await GraderProcess.start({}, allow_network=pool.allow_unisolated_network)
    except UserCodeError as error:
        _log.error("python_graders_cannot_run", error=str(error))
        return
    layers = process.layers
    await process.stop()
    report = _log.info if layers.landlock else _log.warning
    report("graders_confined", **asdict(layers))
