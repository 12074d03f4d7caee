"""The gRPC face of the frozen models, and the composition of the service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import torch
from nats.errors import Error as NatsError

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, Bus
from gradbus.control.failures import is_infrastructure
from gradbus.errors import GradbusError, ServiceAwayError
from gradbus.graders.result import STATUS
from gradbus.ids import checked_name
from gradbus.process import Process
from gradbus.rpc import RpcServer
from gradbus.telemetry import PROCESS
from gradbus.v1.reference_service_pb2 import LogProbsRequest, LogProbsResponse
from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceServicer, add_ReferenceServiceServicer_to_server
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from gradbus_reference.batching import Batcher
from gradbus_reference.model import ModelCache
from gradbus_reference.requests import (
    LogProbsQuestion,
    PromptResponse,
    ScoreQuestion,
    Values,
    decoded,
    failed_scores,
    logprobs_response,
    score_response,
)
from gradbus_reference.settings import ReferenceSettings
from gradbus_reference.teacher_servers import TeacherServers

_FAILURES = (GradbusError, NatsError, OSError)
_STATUS_NAMES = {number: name for name, number in STATUS.items()}


class ReferenceService(ReferenceServiceServicer, RewardServiceServicer):
    """Token log-probabilities under a run's base model, its teacher or a version of it, and scores of its reward model."""

    def __init__(self, models: ModelCache, batcher: Batcher, servers: TeacherServers, waiting_calls: int) -> None:
        self._models = models
        self._batcher = batcher
        self._servers = servers
        self._waiting_calls = waiting_calls
        for status in _STATUS_NAMES.values():
            _count(status, 0)  # the series begin at 0, so that a first error is an increase

    async def LogProbs(self, request: LogProbsRequest, context: grpc.aio.ServicerContext[Any, Any]) -> LogProbsResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        await self._refuse_beyond_bound(context)
        try:
            asked = (request.of_teacher, request.top_k, tuple(request.version_files))
            question = LogProbsQuestion(checked_name(request.run_id, "run"), request.temperature, *asked)
            return logprobs_response(request.sequences, await self._logprobs(question, decoded(request.sequences)))
        except _FAILURES as error:
            # The conductor ends a run whose calls fail by a precondition again and again, and waits for a server that is away.
            is_away = is_infrastructure(error) or isinstance(error, ServiceAwayError)
            status = grpc.StatusCode.UNAVAILABLE if is_away else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(status, _described(error))

    async def Score(self, request: ScoreRequest, context: grpc.aio.ServicerContext[Any, Any]) -> ScoreResponse:  # noqa: N802 - named by gRPC
        """See the proto. A failure of the model is a result, as it is with every other scorer."""
        await self._refuse_beyond_bound(context)
        try:
            question = ScoreQuestion(checked_name(request.run_id, "run"), tuple(request.version_files))
            response = score_response(request.samples, await self._batcher.values(question, decoded(request.samples)))
        except _FAILURES as error:
            response = failed_scores(request, _described(error), permanent=not is_infrastructure(error))
        for status, samples in Counter(result.status for result in response.results).items():
            _count(_STATUS_NAMES[status], samples)
        return response

    async def _logprobs(self, question: LogProbsQuestion, sequences: Sequence[PromptResponse]) -> Sequence[Values | None]:
        if question.of_teacher and (teacher := await self._models.teachers_server(question.run_id)) is not None:
            return await self._servers.values(teacher, question, sequences)
        return await self._batcher.values(question, sequences)

    async def _refuse_beyond_bound(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._batcher.waiting + self._servers.calls >= self._waiting_calls:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._waiting_calls} calls are waiting already; try again, or add replicas"
            )


async def serve(settings: ReferenceSettings, process: Process) -> None:
    """Serves until the process is asked to stop, then finishes the calls in flight."""
    torch.set_num_threads(settings.threads)
    bus = await Bus.connect(settings.bus, f"reference {settings.worker_id}")
    torch_thread = ThreadPoolExecutor(1, "torch")
    models = ModelCache(settings, await bus.bucket(Buckets.RUNS), settings.open_objects(), torch_thread)
    batcher = Batcher(models, torch_thread)
    server = RpcServer(settings.rpc)
    servers = TeacherServers(settings)
    service = ReferenceService(models, batcher, servers, settings.waiting_calls)
    add_ReferenceServiceServicer_to_server(service, server.server)
    add_RewardServiceServicer_to_server(service, server.server)
    await server.start()
    process.ready = True
    ends: set[asyncio.Future[Any]] = {asyncio.create_task(process.stopping.wait(), name="stopping"), batcher.abandoned}
    async with background(models.tend_idle(), "tend idle models"), background(servers.close_idle(), "close idle connections"):
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await server.stop()
    await servers.close()
    torch_thread.shutdown(wait=False, cancel_futures=True)
    await bus.close()
    if batcher.abandoned.done():
        batcher.abandoned.result()


def _count(status: str, samples: int) -> None:
    PROCESS.count("gradbus.reward.samples", samples, {"gradbus.scorer": "reward_models", "gradbus.reward.status": status})


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
