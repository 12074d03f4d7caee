"""The environment of a run, as a rollout worker calls it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from grpc import StatusCode
from grpc.aio import AioRpcError

from gradbus.control.runs import Determinism, RunRecord, WorkerPresence
from gradbus.errors import EnvironmentFaultError, InvalidItemError, SessionLostError
from gradbus.rpc import describe_rpc_error
from gradbus.rpc.live_callers import HELD_SECONDS
from gradbus.spec import EnvironmentSpec
from gradbus.telemetry import get_logger
from gradbus.tokenizer.turns import TurnSettings
from gradbus.v1.environment_service_pb2 import (
    DETERMINISM_RECORDED,
    DETERMINISM_SEEDED,
    ENVIRONMENT_STATUS_ERROR,
    ENVIRONMENT_STATUS_OK,
    ENVIRONMENT_STATUS_UNKNOWN_SESSION,
    CloseRequest,
    DescribeRequest,
    DescribeResponse,
    KeepAliveRequest,
    OpenRequest,
    OpenResponse,
    StepRequest,
    StepResponse,
)
from gradbus_rollout.episodes.withdrawals import Draw, Withdrawals

if TYPE_CHECKING:
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceAsyncStub

_log = get_logger(__name__)
_RETRY_SECONDS = 0.5
_START_SECONDS = 60.0
"""Beyond the deadline of an answer: the service may have to start a process, or repeat the calls of a session that it lost."""
_AWAY_SECONDS = 10.0
"""So long one episode may be told that it is away while no other one has an answer, before the worker says so."""
_CLOSE_SECONDS = 15.0
"""More than the service waits for the answer of a server."""
_FAULTS = frozenset({StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION, StatusCode.INTERNAL, StatusCode.UNKNOWN})
"""Of a call that would fail again. With any other code the service is away, busy, or not set up for this worker."""
_Answer = TypeVar("_Answer", OpenResponse, StepResponse)


@dataclass(slots=True)
class EnvironmentClient:
    """Calls the environment service for one run. A service or environment that is away is waited for, and shown as the worker's trouble."""

    stub: EnvironmentServiceAsyncStub
    address: str
    record: RunRecord
    presence: WorkerPresence
    trouble: str = ""
    """Why it is waited for; empty if it is not."""
    away_since: float | None = None
    """When a call was first told that it is away, with no answer to any call since; by the monotonic clock."""
    withdrawals: Withdrawals = field(default_factory=Withdrawals)
    worker: str = field(default_factory=lambda: secrets.token_hex(8))
    """Names this process while it serves this run: a worker that is started again is another one."""

    async def keep_alive(self) -> None:
        """Tells the service, for ever, that this process lives: the call ends with the process. Its answer may withdraw draws."""
        request = KeepAliveRequest(worker=self.worker)
        failed: StatusCode | None = None
        while True:
            try:
                said = await self.stub.KeepAlive(request, timeout=2 * HELD_SECONDS, wait_for_ready=True)
                failed = None
                request = KeepAliveRequest(worker=self.worker, known_draws=said.withdrawn_draws)
                for draw in said.withdrawn_draws:
                    self.withdrawals.add(Draw(draw.session, draw.ordinal))
            except AioRpcError as error:
                if error.code() is not failed:
                    _log.warning("keep_alive_failed", run_id=self.record.run_id, error=self._described(error))
                failed = error.code()
                await asyncio.sleep(_RETRY_SECONDS)

    async def describe(self) -> DescribeResponse:
        """Tools and digest. Raises EnvironmentFaultError for an environment that cannot be used."""
        request = DescribeRequest(run_id=self.record.run_id, environment_json=self._section)
        while True:
            try:
                described = await self.stub.Describe(request, timeout=self._seconds, wait_for_ready=True)
            except AioRpcError as error:
                if error.code() is StatusCode.FAILED_PRECONDITION:
                    raise EnvironmentFaultError(error.details() or "the environment cannot be used; see its log") from error
                await self._wait(self._described(error))
            else:
                self._came_back()
                return described

    async def open(self, request: OpenRequest) -> OpenResponse:
        """Begins an episode. Raises EnvironmentFaultError, and its two kinds."""
        request.run_id, request.environment_json, request.worker = self.record.run_id, self._section, self.worker
        return await self._answer(lambda: self.stub.Open(request, timeout=self._seconds, wait_for_ready=True))

    async def step(self, request: StepRequest) -> StepResponse:
        """The answer to a turn. Raises EnvironmentFaultError, and its two kinds."""
        request.run_id = self.record.run_id
        return await self._answer(lambda: self.stub.Step(request, timeout=self._seconds, wait_for_ready=True))

    async def close(self, session: str) -> None:
        """Ends a session. If the call fails, the service ends it some time after its last call."""
        self.withdrawals.forget(session)
        with contextlib.suppress(AioRpcError):
            await self.stub.Close(CloseRequest(run_id=self.record.run_id, session=session), timeout=_CLOSE_SECONDS)

    async def _answer(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        while True:
            try:
                answer = await call()
            except AioRpcError as error:
                if error.code() in _FAULTS:
                    raise EnvironmentFaultError(self._described(error)) from error
                await self._wait(self._described(error))
                continue
            if not answer.is_away:
                self._came_back()
            if answer.status == ENVIRONMENT_STATUS_OK:
                return answer
            if answer.status == ENVIRONMENT_STATUS_UNKNOWN_SESSION:
                raise SessionLostError(
                    "the environment service has no such session: it was started again, closed the session as idle, or gave the episode "
                    "to another worker"
                )
            if answer.status != ENVIRONMENT_STATUS_ERROR:
                raise InvalidItemError(answer.reason or "the environment cannot judge this item")
            if not answer.is_away:
                raise EnvironmentFaultError(answer.reason or "the environment failed and gave no reason; see its log")
            if isinstance(answer, OpenResponse) and answer.is_queued:
                self._came_back()
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                await self._wait(answer.reason)

    async def _wait(self, reason: str) -> None:
        """Waits a moment. The reason is shown once no call has had an answer for some seconds, and until there is one."""
        now = time.monotonic()
        self.away_since = now if self.away_since is None else self.away_since
        if now - self.away_since >= _AWAY_SECONDS:
            if not self.trouble:
                _log.warning("environment_away", run_id=self.record.run_id, error=reason)
            self.trouble = self.presence.trouble = reason
            self.presence.awaits_environment = True
        await asyncio.sleep(_RETRY_SECONDS)

    def _came_back(self) -> None:
        self.away_since = None
        if self.trouble and self.presence.trouble == self.trouble:
            self.presence.trouble = ""
        self.trouble, self.presence.awaits_environment = "", False

    def _described(self, error: AioRpcError) -> str:
        return describe_rpc_error("the environment service", self.address, error)

    @property
    def _section(self) -> str:
        section = self.record.spec.environment
        return "" if section is None else section.model_dump_json()

    @property
    def _seconds(self) -> float:
        section = self.record.spec.environment
        return _START_SECONDS + (0.0 if section is None else section.step_seconds)


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """The environment of a run, as it describes itself."""

    section: EnvironmentSpec
    client: EnvironmentClient
    description: DescribeResponse

    @property
    def is_seeded(self) -> bool:
        """Whether its answers are a function of seed and calls: a session can be made again."""
        return self.description.determinism == DETERMINISM_SEEDED

    @property
    def has_journal(self) -> bool:
        """Whether its episodes are recorded."""
        if self.section.journal is not None:
            return self.section.journal
        return self.description.determinism == DETERMINISM_RECORDED

    @property
    def determinism(self) -> Determinism:
        """What its episodes are a function of."""
        if self.is_seeded:
            return "spec"
        return "given records" if self.has_journal and self.description.determinism == DETERMINISM_RECORDED else "none"

    def check_determinism(self) -> None:
        """Raises EnvironmentFaultError if a run in it cannot be deterministic, not even given the records of its episodes."""
        if self.determinism != "none":
            return
        name = self.description.name
        if self.description.determinism == DETERMINISM_RECORDED:
            raise EnvironmentFaultError(
                f"the run is deterministic and the environment {name} only by the records of its episodes; leave out journal = false, or "
                "set deterministic = false"
            )
        raise EnvironmentFaultError(
            f"the run is deterministic and the environment {name} does not say that its answers depend on seed and calls alone; let it "
            'describe itself as "seeded", or as "recorded" if its answers are to be recorded, or set deterministic = false'
        )

    @property
    def turn_settings(self) -> TurnSettings:
        """What the tokenizer has to know: the tools go into the prompt."""
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters_json)}
            for tool in self.description.tools
        ]
        section, tools_json = self.section, json.dumps(tools, ensure_ascii=False)
        return TurnSettings(
            tools_json,
            section.tool_parser,
            section.tool_result_tokens,
            tools_by_conversation=self.description.tools_by_conversation,
            thinking=section.thinking,
            is_agent=section.agent is not None,
        )
