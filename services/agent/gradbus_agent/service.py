"""The agent service: gRPC for rollout workers, HTTP for agents."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import grpc
from pydantic import ValidationError

from gradbus.access.keyring import Keyring
from gradbus.process import Process
from gradbus.rpc import LiveCallers, RpcServer
from gradbus.sandbox.commands.run import SandboxError
from gradbus.spec.sections import EnvironmentSpec
from gradbus.telemetry import under
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceServicer, add_EnvironmentServiceServicer_to_server
from gradbus_agent.contract import Reply
from gradbus_agent.episodes.episode import AgentEpisode
from gradbus_agent.episodes.registry import Registry
from gradbus_agent.episodes.turns import Opening, open_response, step_response
from gradbus_agent.http.app import Endpoint, create_app
from gradbus_agent.http.server import HttpServer
from gradbus_agent.push import Agents
from gradbus_agent.settings import AgentSettings
from gradbus_agent.spawn import SPAWN, AgentCommands
from gradbus_agent.telemetry import count_reply
from gradbus_agent.withdrawals import Withdrawals

_CLAIM_SECONDS: Final = 20.0
"""How long one Open waits for an agent while nobody plays: the rollout worker then shows the reason, and asks again."""
_SPREAD: Final = 0.5
"""Each Open waits for a share of its time between this and 1: thousands that came at once do not come at once again."""
_MEAN_SHARE: Final = (_SPREAD + 1.0) / 2
_OFFERS_PER_SECOND: Final = 100.0
"""Of a run for which nobody plays: the more episodes wait, the longer does one Open, as far as its caller's deadline allows."""
_RESPONSE_SECONDS: Final = 0.5  # of the caller's deadline, for the way back
_WAIT_SECONDS: Final = 60.0
"""Of a caller without a deadline."""
_SWEEP_SECONDS: Final = 1.0
_LOST_SECONDS: Final = 3.0
"""A rollout worker whose connection ended is gone if it does not come back so soon."""
_DIGEST: Final = "agent"
_SECTIONS: Final = 256
"""Of runs, that are kept."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Reach:
    """How agents that do not claim get their episodes."""

    addresses: Agents
    commands: AgentCommands


@dataclass(frozen=True, slots=True)
class Workers:
    """The rollout workers that call."""

    live: LiveCallers
    withdrawals: Withdrawals


class AgentService(EnvironmentServiceServicer):
    """An agent as an environment: it asks, and the policy's turns are its answers."""

    def __init__(self, registry: Registry, reach: Reach, workers: Workers, public_url: str) -> None:
        self._registry = registry
        self._reach = reach
        self._live = workers.live
        self._withdrawals = workers.withdrawals
        self._public_url = public_url

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802 - named by gRPC
        """See the proto. An agent sends its tools with each request."""
        try:
            section = _section(request.environment_json)
        except ValueError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        spawned = (section.agent or "").startswith(SPAWN)
        try:
            if spawned and (why := await self._reach.commands.why_not(section.agent or "")):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        except SandboxError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        if section.agent != "pull" and not spawned and not self._public_url:
            message = "agents are not called from here: nobody said at which address they reach it; set GRADBUS_PUBLIC_URL"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        return pb.DescribeResponse(name="agent", digest=_DIGEST, determinism=pb.DETERMINISM_RECORDED, tools_by_conversation=True)

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        try:
            section = _section(request.environment_json)
        except ValueError as error:
            return open_response("", Reply.error(str(error)))
        opening = Opening(
            request.run_id, request.episode_id, request.attempt, request.player, request.item_json or "{}", section, request.traceparent
        )
        self._live.note(request.worker)
        found = self._registry.open(opening, request.worker, resume=request.resume)
        session, reply = "", found if isinstance(found, Reply) else Reply()
        if isinstance(found, AgentEpisode):
            session = found.session
            async with _held(found):
                reply = await self._opened(found, _seconds(context))
        count_reply("open", reply)
        return open_response(session, reply)

    async def Step(self, request: pb.StepRequest, context: Context) -> pb.StepResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        episode = self._registry.of_session(request.run_id, request.session)
        if episode is None:
            reply = Reply("unknown_session", "the service does not know this session; open the episode again and repeat its turns")
        else:
            self._live.note(episode.worker)
            async with _held(episode):
                reply = await episode.step(request, _seconds(context))
        count_reply("step", reply)
        return step_response(reply)

    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseResponse:  # noqa: ARG002, N802 - the shape of gRPC
        """See the proto."""
        episode = self._registry.of_session(request.run_id, request.session)
        if episode is not None:
            self._registry.close(episode, "its rollout worker closed it")
        return pb.CloseResponse()

    async def KeepAlive(self, request: pb.KeepAliveRequest, context: Context) -> pb.KeepAliveResponse:  # noqa: ARG002, N802
        """See the proto."""
        known = {(draw.session, draw.ordinal) for draw in request.known_draws}
        withdrawn = await self._withdrawals.next(request.worker, known)
        return pb.KeepAliveResponse(withdrawn_draws=[pb.AskedDraw(session=session, ordinal=ordinal) for session, ordinal in withdrawn])

    async def _opened(self, episode: AgentEpisode, seconds: float) -> Reply:
        began, share = time.monotonic(), random.uniform(_SPREAD, 1.0)
        if episode.opening.agent.startswith(SPAWN):
            if not episode.is_claimed and (failed := await self._spawned(episode, min(seconds, _CLAIM_SECONDS))) is not None:
                return failed
        elif episode.opening.agent != "pull":
            if not episode.is_claimed and (failed := await self._posted(episode)) is not None:
                return failed
        else:
            # Of the caller's time, an agent that claims it late needs some for its first request.
            for_request = min(episode.opening.section.step_seconds, max(0.0, seconds - _CLAIM_SECONDS))
            queued_until = began + share * (seconds - for_request)
            patience = share * self._patience(episode.opening.run_id)
            while not await episode.until_claimed(min(queued_until - time.monotonic(), patience)):
                if not self._registry.crowd(episode.opening.run_id)[0] or queued_until <= time.monotonic():
                    return self._unclaimed(episode.opening.run_id)
        return await episode.first(began + seconds - time.monotonic())

    def _patience(self, run_id: str) -> float:
        """How long one Open waits at most while nobody plays."""
        _, waiting = self._registry.crowd(run_id)
        return max(_CLAIM_SECONDS, waiting / (_OFFERS_PER_SECOND * _MEAN_SHARE))

    def _unclaimed(self, run_id: str) -> Reply:
        played, waiting = self._registry.crowd(run_id)
        if played:
            return Reply.queued(played, waiting)
        waited = self._registry.unclaimed_seconds(run_id)
        return Reply.away(
            f"no agent has claimed an episode of this run for {waited:.0f} s; start your agent, which claims by "
            f'POST {self._public_url}/v1/agent/claim {{"run": "{run_id}"}}{"" if self._public_url else " to the agent service"}'
        )

    async def _spawned(self, episode: AgentEpisode, seconds: float) -> Reply | None:
        """Starts the episode's command."""
        try:
            failed = await self._reach.commands.play(episode, lambda: self._registry.give(episode), seconds)
        except asyncio.CancelledError:
            self._registry.take_back(episode)
            raise
        if failed is not None and not failed.is_away:
            self._registry.close(episode, failed.reason)
        elif failed is not None and episode.is_claimed:
            self._registry.take_back(episode)
        return failed

    async def _posted(self, episode: AgentEpisode) -> Reply | None:
        """Gives the episode to the agent at its address. The agent may ask before it has answered the post."""
        key = self._registry.give(episode)
        try:
            with under(episode.opening.traceparent):  # of its group: the call's own is that of the whole task
                failed = await self._reach.addresses.post(episode.opening.agent, episode.opening.document(f"{self._public_url}/v1", key))
        except asyncio.CancelledError:
            self._registry.take_back(episode)
            raise
        if failed is not None and failed.is_away:
            self._registry.take_back(episode)
        elif failed is not None:
            self._registry.close(episode, failed.reason)
        elif not episode.over:
            episode.beat()  # its lease began when it was posted
        return failed


@lru_cache(_SECTIONS)
def _section(environment_json: str) -> EnvironmentSpec:
    """One for all episodes of a run. Raises ValueError for a section without an agent."""
    try:
        section = EnvironmentSpec.model_validate_json(environment_json)
    except ValidationError as error:
        raise ValueError(f"the [environment] section is not valid ({error.error_count()} faults); submit the run again") from error
    if section.agent is None:
        raise ValueError("the run's environment is no agent; ask the environment service")
    return section


@contextlib.asynccontextmanager
async def _held(episode: AgentEpisode) -> Any:
    async with episode.lock:
        try:
            yield
        finally:
            episode.heard = time.monotonic()


def _seconds(context: Context) -> float:
    remaining = context.time_remaining()
    return _WAIT_SECONDS if remaining is None else max(0.0, remaining - _RESPONSE_SECONDS)


async def serve(settings: AgentSettings, process: Process) -> None:
    """Serves until the process is asked to stop. Raises SettingsError when an address is taken or the keys cannot be read."""
    agents, live = Agents(settings.addresses), LiveCallers(_LOST_SECONDS)
    withdrawals = Withdrawals(live)
    registry = Registry(withdrawals.add)
    public_url = settings.public_url.rstrip("/")
    http = HttpServer(settings.http_listen, settings.https, create_app(Endpoint(registry, Keyring(settings.api_keys_file), public_url)))
    server, commands = RpcServer(settings.rpc), AgentCommands(settings.agent_commands, settings.max_agent_processes, http.also_on)
    service = AgentService(registry, Reach(agents, commands), Workers(live, withdrawals), public_url)
    add_EnvironmentServiceServicer_to_server(service, server.server)
    await server.start()
    async with http.serving() as serving:
        process.ready = True
        stopping = asyncio.create_task(process.stopping.wait(), name="stopping")
        while not (stopping.done() or serving.done()):
            registry.lose(live.take_gone())
            withdrawals.forget_ended()
            registry.close_idle(settings.session_seconds)
            await agents.keep(registry.addresses)
            await asyncio.wait({stopping, serving}, timeout=_SWEEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        registry.close_all()
        await commands.close()
    if not process.stopping.is_set():
        raise RuntimeError("the HTTP server ended by itself; the process ends too, to be started again")
    live.end()
    await server.stop()
    await agents.keep(())
