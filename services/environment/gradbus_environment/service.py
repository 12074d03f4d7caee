"""The gRPC server of the environment service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, NoReturn

import grpc

from gradbus import crash_points
from gradbus.errors import UserCodeError
from gradbus.memory.resident import return_memory
from gradbus.process import Process
from gradbus.rpc import LiveCallers, RpcServer
from gradbus.telemetry import get_logger
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceServicer, add_EnvironmentServiceServicer_to_server
from gradbus_environment.contract import Answer, EnvironmentRefusedError
from gradbus_environment.registry import IDLE_SECONDS, Registry
from gradbus_environment.requests import description_message, move_of, open_message, opening_of, step_message
from gradbus_environment.runs import OpenRun
from gradbus_environment.sandbox.process import EnvironmentProcess
from gradbus_environment.settings import EnvironmentSettings
from gradbus_environment.telemetry import count_answer, timed

_log = get_logger(__name__)
_RESPONSE_SECONDS = 0.2  # of the caller's deadline, for the way back
_WAIT_SECONDS = 60.0
"""Of a caller without a deadline: for a child, beside the call itself."""
_LOST_SECONDS = 20.0
"""A rollout worker whose connection ended is gone if it does not come back so soon."""
_DESCRIBE_SECONDS = 60.0  # to start a child, or for a server that is still starting
_PROBE = "class Environment:\n    def reset(self, item, seed):\n        pass\n"

Context = grpc.aio.ServicerContext[Any, Any]


class EnvironmentService(EnvironmentServiceServicer):
    """Opens, steps and closes sessions. A failure of an environment is an answer, never a failed call, but for Describe."""

    def __init__(self, registry: Registry, live: LiveCallers) -> None:
        self._registry = registry
        self._live = live

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        try:
            with timed("describe"):
                async with self._registry.use(request.run_id, request.environment_json) as run:
                    description = await run.world.describe(min(_seconds(context, run), _DESCRIBE_SECONDS))
        except EnvironmentRefusedError as error:
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, error)
        except UserCodeError as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, error)
        count_answer("describe", "ok")
        return description_message(description)

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenResponse:  # noqa: N802 - named by gRPC
        """See the proto."""

        async def opened(run: OpenRun, seconds: float) -> tuple[str, Answer]:
            return await run.open(opening_of(request), seconds, request.worker, resume=request.resume)

        self._live.note(request.worker)
        try:
            async with self._registry.use(request.run_id, request.environment_json) as run:
                session, answer = await _answered("open", run, context, opened)
        except EnvironmentRefusedError as error:
            session, answer = "", Answer.error(str(error))
        count_answer("open", answer.status)
        return open_message(session, answer)

    async def Step(self, request: pb.StepRequest, context: Context) -> pb.StepResponse:  # noqa: N802 - named by gRPC
        """See the proto."""

        async def stepped(run: OpenRun, seconds: float) -> tuple[str, Answer]:
            return "", await run.step(request.session, move_of(request, run.section.calls_per_turn), seconds)

        async with self._registry.of_session(request.run_id, request.session) as run:
            answer = Answer("unknown_session", "the service does not know this session; open the episode again and repeat its turns")
            if run is not None:
                self._live.note(run.worker_of(request.session))
                _, answer = await _answered("step", run, context, stepped)
                crash_points.reached("step-done")
        count_answer("step", answer.status)
        return step_message(answer)

    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseResponse:  # noqa: ARG002, N802 - the shape of gRPC
        """See the proto."""
        async with self._registry.of_session(request.run_id, request.session) as run:
            if run is not None:
                await run.close(request.session)
        count_answer("close", "ok")
        return pb.CloseResponse()

    async def KeepAlive(self, request: pb.KeepAliveRequest, context: Context) -> pb.KeepAliveResponse:  # noqa: ARG002, N802
        """See the proto."""
        await self._live.hold(request.worker)
        return pb.KeepAliveResponse()


async def _answered(
    call: str, run: OpenRun, context: Context, ask: Callable[[OpenRun, float], Awaitable[tuple[str, Answer]]]
) -> tuple[str, Answer]:
    """What `ask` gives within the caller's deadline; whatever goes wrong is an ERROR."""
    seconds = _seconds(context, run)
    try:
        with timed(call):
            async with asyncio.timeout(seconds):
                return await ask(run, min(run.section.step_seconds, max(seconds, 0.0)))
    except TimeoutError:
        return "", Answer.away(
            f"the environment was too busy to answer within {seconds:.1f} s; make it faster, raise GRADBUS_CHILDREN (or"
            " GRADBUS_MAX_SANDBOXES, if it executes commands) or lower rollout.slots"
        )
    except Exception as error:  # noqa: BLE001 - the boundary of one call: the run that met this fault is told, and others go on
        _log.exception("environment_broke")
        return "", Answer.error(f"a fault in the environment service: {type(error).__name__}: {error}; see its log")


def _seconds(context: Context, run: OpenRun) -> float:
    remaining = context.time_remaining()
    return run.section.step_seconds + _WAIT_SECONDS if remaining is None else remaining - _RESPONSE_SECONDS


async def _abort(context: Context, code: grpc.StatusCode, error: UserCodeError) -> NoReturn:
    count_answer("describe", "error")
    await context.abort(code, str(error).encode("utf-8", "replace").decode())


async def serve(settings: EnvironmentSettings, process: Process) -> None:
    """Serves until the process is asked to stop, then finishes the calls in flight."""
    if settings.python_environments:
        await _log_confinement(allow_network=settings.allow_unisolated_network)
    registry = Registry(settings.worlds, settings.capacity, settings.session_seconds)
    server, live = RpcServer(settings.rpc), LiveCallers(_LOST_SECONDS)
    add_EnvironmentServiceServicer_to_server(EnvironmentService(registry, live), server.server)
    await server.start()
    process.ready = True
    while not process.stopping.is_set():
        await registry.close_lost(live.take_gone())
        if await registry.close_idle():
            await asyncio.to_thread(return_memory)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS / 4):
                await process.stopping.wait()
    live.end()
    await server.stop()
    await registry.end()


async def _log_confinement(*, allow_network: bool) -> None:
    """Logs which layers of the confinement work here, because containers and kernels differ."""
    try:
        process = await EnvironmentProcess.start(_PROBE, allow_network=allow_network)
    except UserCodeError as error:
        _log.error("python_environments_cannot_run", error=str(error))
        return
    layers = process.layers
    await process.stop()
    report = _log.info if layers.landlock else _log.warning
    report("environments_confined", **asdict(layers))
