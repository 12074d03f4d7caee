"""Plays planned episodes against the environment service, and keeps what it answered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import MessageToDict

from gradbus.environment_check.plan import PlannedEpisode
from gradbus.v1.environment_service_pb2 import (
    ENVIRONMENT_STATUS_ERROR,
    ENVIRONMENT_STATUS_OK,
    CloseRequest,
    OpenRequest,
    OpenResponse,
    StepRequest,
    StepResponse,
)

if TYPE_CHECKING:  # the module of stubs has no such class when it runs
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceAsyncStub

_BEYOND_SECONDS: Final = 30.0
"""Over the environment's own deadline: to start a child."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of the environment."""

    where: str
    """`reset`, or `turn 3: compare {"guess": 7}`."""
    answer: OpenResponse | StepResponse
    seconds: float

    @property
    def fields(self) -> dict[str, Any]:
        """What must be the same in every process."""
        fields = MessageToDict(self.answer, preserving_proto_field_name=True)
        fields.pop("session", None)  # the service's own name
        return fields


@dataclass(slots=True)
class Played:
    """An episode with its answers."""

    episode: PlannedEpisode
    said: list[Said] = field(default_factory=list)

    @property
    def fault(self) -> Said | None:
        """The answer that ended it as a failure of the environment."""
        last = self.said[-1]
        return None if last.answer.status == ENVIRONMENT_STATUS_OK else last

    @property
    def has_reward(self) -> bool:
        """Whether any turn had one."""
        return any(isinstance(one.answer, StepResponse) and one.answer.HasField("reward") for one in self.said)


@dataclass(frozen=True, slots=True)
class Player:
    """One of the two processes: the environment under a run id of its own."""

    stub: EnvironmentServiceAsyncStub
    run_id: str
    section_json: str
    step_seconds: float

    async def play(self, episode: PlannedEpisode) -> Played:
        """Plays until the environment, the policy or a fault ends the episode. A fault is tried once more, as a worker does."""
        played = await self._attempt(episode, 0)
        if played.fault is not None and played.fault.answer.status == ENVIRONMENT_STATUS_ERROR and not played.fault.answer.is_away:
            played = await self._attempt(episode, 1)
        return played

    async def _attempt(self, episode: PlannedEpisode, attempt: int) -> Played:
        played = Played(episode)
        request = OpenRequest(run_id=self.run_id, environment_json=self.section_json, attempt=attempt)
        request.episode_id, request.item_json, request.seed = f"train.0.{episode.number}.0", episode.item_json, episode.seed
        began = time.monotonic()
        opened: OpenResponse = await self.stub.Open(request, timeout=self._deadline)
        played.said.append(Said("reset", opened, time.monotonic() - began))
        if opened.status != ENVIRONMENT_STATUS_OK:
            return played
        try:
            await self._turns(played, opened.session)
        finally:
            await self.stub.Close(CloseRequest(run_id=self.run_id, session=opened.session), timeout=self._deadline)
        return played

    async def _turns(self, played: Played, session: str) -> None:
        for number, turn in enumerate(played.episode.turns):
            request = StepRequest(run_id=self.run_id, session=session, turn=number, assistant=turn.assistant)
            request.is_last, request.end_reason = bool(turn.end), turn.end
            began = time.monotonic()
            answer: StepResponse = await self.stub.Step(request, timeout=self._deadline)
            played.said.append(Said(f"turn {number}: {_described(request)}", answer, time.monotonic() - began))
            is_answered = not turn.assistant.calls and not answer.messages
            if answer.status != ENVIRONMENT_STATUS_OK or answer.done or is_answered:
                return

    @property
    def _deadline(self) -> float:
        return self.step_seconds + _BEYOND_SECONDS


def _described(request: StepRequest) -> str:
    assistant = request.assistant
    if assistant.finish == "none":
        return "no room to draw"
    return "; ".join(f"{call.name or 'malformed'} {call.arguments_json}" for call in assistant.calls) or repr(assistant.text)
