"""One attempt to play an episode: draw, parse, step, extend, a turn at a time. The engine's slot is free while the environment works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gradbus.errors import DatasetError, EnvironmentFaultError, InvalidItemError, SessionLostError
from gradbus.ids import turn_seed
from gradbus.tokenizer.turns import ChatMessage
from gradbus.v1.environment_service_pb2 import AssistantTurn, OpenRequest, StepRequest, StepResponse
from gradbus.v1.episode_pb2 import (
    CALL_STATUS_MALFORMED,
    CALL_STATUS_OK,
    CALL_STATUS_UNKNOWN_TOOL,
    END_REASON_ANSWERED,
    END_REASON_CONTEXT,
    END_REASON_ENVIRONMENT_DONE,
    END_REASON_FAILED,
    END_REASON_INVALID_CALLS,
    END_REASON_LENGTH,
    END_REASON_MAX_TOKENS,
    END_REASON_MAX_TURNS,
    END_REASON_UNSPECIFIED,
    EndReason,
    Message,
    ToolCall,
    Turn,
)
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward
from gradbus_rollout.engines.base import Engine, PromptGroup
from gradbus_rollout.episodes.codec import TurnCodec
from gradbus_rollout.episodes.environment import EnvironmentClient
from gradbus_rollout.episodes.episode import EpisodeLimits, EpisodeStart, PlayedEpisode
from gradbus_rollout.episodes.transcript import Transcript

_CALL_STATUS: Final = {"ok": CALL_STATUS_OK, "malformed": CALL_STATUS_MALFORMED, "unknown_tool": CALL_STATUS_UNKNOWN_TOOL}
_NO_TURN: Final = AssistantTurn(finish="none")
"""In place of a turn that the policy had no room to begin."""
_OPEN: Final = frozenset({END_REASON_UNSPECIFIED, END_REASON_MAX_TURNS})


@dataclass(frozen=True, slots=True)
class PlayerParts:
    """Whom a player asks."""

    engine: Engine
    turns: TurnCodec
    environment: EnvironmentClient
    limits: EpisodeLimits


class _Room(NamedTuple):
    """Tokens that the next turn may have, and what the episode ends with when they are used up."""

    tokens: int
    end: EndReason


@dataclass(slots=True)
class _Rewards:
    """The rewards of an episode's turns."""

    total: float = 0.0
    given: bool = False
    components: dict[str, float] = field(default_factory=dict)

    def add(self, answer: StepResponse) -> None:
        if answer.HasField("reward"):
            self.total += answer.reward
            self.given = True
        for name, value in answer.components.items():
            self.components[name] = self.components.get(name, 0.0) + value


class Attempt:
    """One attempt to play an episode."""

    def __init__(self, parts: PlayerParts, start: EpisodeStart, attempt: int) -> None:
        self._start, self._attempt = start, attempt
        self._engine, self._turns, self._environment = parts.engine, parts.turns, parts.environment
        self._limits = parts.limits
        self._session = ""
        self._prompt_ids = start.prompt_ids
        self._transcript = Transcript()
        self._rewards = _Rewards()
        self._invalid_turns = 0

    async def play(self) -> PlayedEpisode:
        """Raises EnvironmentFaultError for a failure that the policy did not cause."""
        await self._open()
        while True:
            room = self._room()
            if room.tokens < 1:
                answer = await self._step(len(self._transcript.turns), _NO_TURN, room.end)
                return self._over(room.end, answer)
            turn = await self._draw(room.tokens)
            end = self._end_after(turn, room)
            answer = await self._step(len(self._transcript.turns) - 1, _assistant(turn), end)
            turn.messages.extend(answer.messages)
            turn.state_digest = answer.state_digest
            if answer.HasField("reward"):
                turn.reward = answer.reward
            if end in _OPEN:  # the last turn that is allowed may be the one that would have ended the episode
                end = _end_with(answer, turn, end)
            if end != END_REASON_UNSPECIFIED:
                return self._over(end, answer)
            self._rewards.add(answer)
            if not await self._extend(answer.messages):
                return self._over(END_REASON_CONTEXT, await self._step(len(self._transcript.turns), _NO_TURN, END_REASON_CONTEXT))

    def failed(self, reason: str) -> PlayedEpisode:
        """The episode as a masked sample."""
        outcome = SampleReward(status=REWARD_STATUS_INVALID, reason=reason)
        return PlayedEpisode(self._prompt_ids, self._transcript, END_REASON_FAILED, outcome, self._attempt)

    async def close(self) -> None:
        """Ends the session, if there is one."""
        if self._session:
            await self._environment.close(self._session)

    async def _open(self) -> None:
        start = self._start
        answer = await self._environment.open(
            OpenRequest(
                episode_id=start.episode_id,
                attempt=self._attempt,
                item_json=start.item,
                seed=start.world_seed,
                traceparent=start.traceparent,
                player=start.player,
            )
        )
        self._session = answer.session
        if answer.messages:
            try:
                self._prompt_ids = await self._turns.conversation(_chat(answer.messages))
            except DatasetError as error:
                raise InvalidItemError(str(error)) from error

    def _room(self) -> _Room:
        limits, transcript = self._limits, self._transcript
        context = limits.context_length - len(self._prompt_ids) - len(transcript.token_ids)
        left = limits.max_drawn_tokens - transcript.drawn
        rooms = ((limits.max_new_tokens, END_REASON_LENGTH), (left, END_REASON_MAX_TOKENS), (context, END_REASON_CONTEXT))
        return min((_Room(*room) for room in rooms), key=lambda room: room.tokens)

    async def _draw(self, room: int) -> Turn:
        """A turn of the policy, drawn and parsed."""
        start, transcript = self._start, self._transcript
        number, prompt = len(transcript.turns), (*self._prompt_ids, *transcript.token_ids)
        seed = turn_seed(start.seed, number)
        (group,) = await self._engine.generate([PromptGroup(start.episode_id, prompt, (seed,), start.greedy, room)])
        (completion,) = group.completions
        turn = transcript.draw(completion, seed)
        parsed = await self._turns.parse(completion.token_ids, completion.finish)
        turn.text = parsed.text
        for at, call in enumerate(parsed.calls):
            turn.calls.append(
                ToolCall(call_id=f"c{number}.{at}", name=call.name, arguments_json=call.arguments_json, status=_CALL_STATUS[call.status])
            )
        return turn

    def _end_after(self, turn: Turn, room: _Room) -> EndReason:
        """Why the episode ends with this turn, as far as the policy decides it; unspecified if it goes on."""
        environment = self._limits.environment
        is_invalid = bool(turn.calls) and not any(call.status == CALL_STATUS_OK for call in turn.calls)
        self._invalid_turns = self._invalid_turns + 1 if is_invalid else 0
        if turn.finish == "length":
            return room.end
        if self._invalid_turns >= environment.invalid_calls:
            return END_REASON_INVALID_CALLS
        return END_REASON_MAX_TURNS if len(self._transcript.turns) >= environment.max_turns else END_REASON_UNSPECIFIED

    async def _step(self, number: int, assistant: AssistantTurn, end: EndReason) -> StepResponse:
        """The environment's answer to a turn; opens a session again that the service lost."""
        request = self._request(number, assistant, end)
        while True:
            try:
                return await self._environment.step(request)
            except SessionLostError:
                await self._open_again(number)
                request.session = self._session

    def _request(self, number: int, assistant: AssistantTurn, end: EndReason = END_REASON_UNSPECIFIED) -> StepRequest:
        is_last = end != END_REASON_UNSPECIFIED
        reason = _end_name(end) if is_last else ""
        return StepRequest(session=self._session, turn=number, assistant=assistant, is_last=is_last, end_reason=reason)

    async def _open_again(self, turns: int) -> None:
        """Repeats the first turns in a new session. Raises EnvironmentFaultError if the environment answers in another way."""
        before, repeated = self._prompt_ids, self._transcript.turns[:turns]
        await self._open()
        answers = [await self._environment.step(self._request(n, _assistant(turn))) for n, turn in enumerate(repeated)]
        pairs = zip(answers, repeated, strict=True)
        if before != self._prompt_ids or any(_said(answer) != _said(turn) for answer, turn in pairs):
            raise EnvironmentFaultError(
                "the environment answered the same turns in another way when they were repeated; derive all that it does from the seed"
            )

    async def _extend(self, messages: Sequence[Message]) -> bool:
        """Appends the answer's tokens, if the context then has room for another turn."""
        transcript = self._transcript
        last = transcript.turns[-1]
        drawn = tuple(transcript.token_ids[last.start : last.end])
        extension = await self._turns.extend(drawn, _chat(messages))
        fits = len(self._prompt_ids) + len(transcript.token_ids) + len(extension.token_ids) < self._limits.context_length
        if fits:
            transcript.extend(extension)
        return fits

    def _over(self, end: EndReason, answer: StepResponse) -> PlayedEpisode:
        """Raises EnvironmentFaultError if nobody gave a reward."""
        rewards = self._rewards
        rewards.add(answer)
        if not rewards.given and not self._limits.has_scorer:
            raise EnvironmentFaultError(
                f"the episode ended ({_end_name(end)}) and the environment gave no reward; return one with its last answer, 0 included"
            )
        outcome = SampleReward(status=REWARD_STATUS_OK, reward=rewards.total, components=rewards.components)
        return PlayedEpisode(self._prompt_ids, self._transcript, end, outcome, self._attempt)


def _end_with(answer: StepResponse, turn: Turn, end: EndReason) -> EndReason:
    """Why the episode ends with this answer, if the environment or the policy wanted it so; else `end`."""
    if answer.done:
        return END_REASON_ENVIRONMENT_DONE
    goes_on = answer.messages or (turn.calls and end == END_REASON_MAX_TURNS)  # results of the last calls may be left out
    return end if goes_on else END_REASON_ANSWERED


def _end_name(end: EndReason) -> str:
    return EndReason.Name(end).removeprefix("END_REASON_").lower()


def _assistant(turn: Turn) -> AssistantTurn:
    return AssistantTurn(text=turn.text, calls=turn.calls, finish=turn.finish)


def _chat(messages: Sequence[Message]) -> list[ChatMessage]:
    return [ChatMessage(message.role, message.content, message.call_id, message.name) for message in messages]


def _said(answer: StepResponse | Turn) -> tuple[list[tuple[str, str]], float | None, str]:
    """What two answers to one turn have in common."""
    messages = [(message.role, message.content) for message in answer.messages]
    return messages, answer.reward if answer.HasField("reward") else None, answer.state_digest
