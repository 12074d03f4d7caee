"""One attempt to play an episode: draw, parse, step, extend, a turn at a time. The engine's slot is free while the environment works.

What the episode's journal has is taken from there; everything else follows from it. A session is opened when the first answer is not there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gradbus import crash_points
from gradbus.errors import DatasetError, EnvironmentFaultError, InvalidItemError, SessionLostError
from gradbus.finish import WITHDRAWN
from gradbus.formats.tokens import pack_ids
from gradbus.ids import asked_turn_seed, digest_of, turn_seed
from gradbus.tokenizer.turns import ChatConversation, DrawnTurn
from gradbus.v1.environment_service_pb2 import AssistantTurn, OpenRequest, OpenResponse, StepRequest, StepResponse
from gradbus.v1.episode_pb2 import (
    CALL_STATUS_MALFORMED,
    CALL_STATUS_OK,
    CALL_STATUS_UNKNOWN_TOOL,
    END_REASON_CONTEXT,
    END_REASON_ENVIRONMENT_DONE,
    END_REASON_FAILED,
    END_REASON_INVALID_CALLS,
    END_REASON_LENGTH,
    END_REASON_MAX_TOKENS,
    END_REASON_MAX_TURNS,
    END_REASON_UNSPECIFIED,
    EndReason,
    ToolCall,
    Turn,
)
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward
from gradbus_rollout.engines.base import Completion, Engine, PromptGroup
from gradbus_rollout.episodes.answers import Rewards, as_assistant, as_chat, as_conversation, drawn_tokens, end_name, end_with, said
from gradbus_rollout.episodes.codec import TurnCodec
from gradbus_rollout.episodes.environment import EnvironmentClient
from gradbus_rollout.episodes.episode import PAUSE_SECONDS, EpisodeLimits, EpisodeStart, LostSessions, PlayedEpisode
from gradbus_rollout.episodes.journal import Journal, Journals
from gradbus_rollout.episodes.transcript import TokenSequence, Transcript
from gradbus_rollout.episodes.withdrawals import Draw
from gradbus_rollout.tasks.generation_traces import TurnTimes

_CALL_STATUS: Final = {"ok": CALL_STATUS_OK, "malformed": CALL_STATUS_MALFORMED, "unknown_tool": CALL_STATUS_UNKNOWN_TOOL}
_NO_TURN: Final = AssistantTurn(finish="none")
"""In place of a turn that the policy had no room to begin."""
_WITHDRAWN: Final = AssistantTurn(finish=WITHDRAWN)
"""In place of a turn that nobody waits for any more."""
_OPEN: Final = frozenset({END_REASON_UNSPECIFIED, END_REASON_MAX_TURNS})


@dataclass(frozen=True, slots=True)
class PlayerParts:
    """Whom a player asks."""

    engine: Engine
    turns: TurnCodec
    environment: EnvironmentClient
    limits: EpisodeLimits
    journals: Journals | None = None
    """None: episodes of this run are not recorded."""


class _Room(NamedTuple):
    """Tokens that the next turn may have, and what the episode ends with when they are used up; unspecified if it goes on."""

    tokens: int
    end: EndReason


class _Terms(NamedTuple):
    """What an agent asks of its next turn."""

    most_tokens: int = 0
    """If it wants fewer than the run's; 0: no bound."""
    stop: tuple[str, ...] = ()
    """Texts at the first of which it ends."""
    is_untrained: bool = False
    """It is told, and is no part of the sample."""

    @classmethod
    def of(cls, answer: OpenResponse | StepResponse) -> _Terms:
        """Those of an answer; an environment has none."""
        return cls(answer.max_new_tokens, tuple(answer.stop), answer.conversation.untrained)


class Attempt:
    """One attempt to play an episode."""

    def __init__(self, parts: PlayerParts, start: EpisodeStart, journal: Journal, lost: LostSessions) -> None:
        self._start, self._journal, self._lost = start, journal, lost
        self.number = journal.attempt
        """Of the episode's attempts, from 0."""
        self._engine, self._turns, self._environment = parts.engine, parts.turns, parts.environment
        self._limits = parts.limits
        self._session = ""
        """Empty until the environment is asked."""
        self._first = self._sequence = TokenSequence(start.prompt_ids)
        """What the next turn is drawn after."""
        self._terms = _Terms()
        self._asked: Counter[str] = Counter()
        self._refused = 0
        """Requests of an agent that had no room, without the untrained ones."""
        self._untrained = 0
        """Turns of an agent that are no part of the sample, and requests for one that had no room."""
        self._withdrawn = 0
        """Turns of an agent that it did not wait for."""
        self._transcript = Transcript()
        self._answered: Turn | None = None
        """The turn that shows the newest answer; None if no turn does."""
        self._rewards = Rewards()
        self._invalid_turns = 0

    async def play(self) -> PlayedEpisode:
        """Raises EnvironmentFaultError for a failure that the policy did not cause."""
        await self._begin(await self._journal.opened(self._open))
        fits = True
        while True:
            room = self._room() if fits else _Room(0, END_REASON_CONTEXT)
            end, answer = await (self._turn(room) if room.tokens >= 1 else self._no_turn(room.end))
            if end != END_REASON_UNSPECIFIED:
                return self._over(end, answer)
            self._rewards.add(answer)
            fits = await self._go_on(answer)

    def failed(self, reason: str) -> PlayedEpisode:
        """The episode as a masked sample."""
        outcome = SampleReward(status=REWARD_STATUS_INVALID, reason=reason)
        return PlayedEpisode(self._first.prompt_ids, self._transcript, END_REASON_FAILED, outcome, self.number)

    def leave(self) -> None:
        """The session, if there is one, is not closed from here: another worker plays on in it, or it is closed already."""
        self._environment.withdrawals.forget(self._session)
        self._session = ""

    async def close(self) -> None:
        """Ends the session, if there is one."""
        if self._session:
            await self._environment.close(self._session)

    async def _turn(self, room: _Room) -> tuple[EndReason, StepResponse]:
        """A turn and the answer to it. Why the episode ends with them; unspecified if it goes on."""
        began = time.time_ns()
        if self._terms.is_untrained:
            return await self._untrained_turn(room)
        turn = await self._draw(room.tokens, self._transcript, f"c{len(self._transcript.turns)}")
        if turn is None:
            return await self._tell_withdrawn()
        end = self._end_after(turn, room)
        answer = await self._answer(turn, end, began)
        if end in _OPEN:  # the last turn that is allowed may be the one that would have ended the episode
            end = end_with(answer, turn, end)
        if answer.done and turn.finish == "length" and room.end == END_REASON_CONTEXT:
            end = END_REASON_CONTEXT  # its agent could have gone on with a shorter conversation
        return end, answer

    async def _untrained_turn(self, room: _Room) -> tuple[EndReason, StepResponse]:
        """As `_turn`, in a transcript that nobody keeps."""
        aside = Transcript()
        turn = await self._draw(room.tokens, aside, f"u{self._untrained}")
        if turn is None:
            return await self._tell_withdrawn()
        return await self._tell_untrained(self._request(len(self._transcript.turns), self._told(turn, aside)))

    async def _tell_untrained(self, request: StepRequest) -> tuple[EndReason, StepResponse]:
        request.is_untrained = True
        self._untrained += 1
        self._answered = None
        answer = await self._step(request)
        return END_REASON_ENVIRONMENT_DONE if answer.done else END_REASON_UNSPECIFIED, answer

    async def _tell_withdrawn(self) -> tuple[EndReason, StepResponse]:
        """As `_turn`, of one that was not drawn to its end. What was asked is not asked any more, unless the answer asks it again."""
        transcript = self._transcript
        transcript.take_back(self._sequence)
        request = self._request(len(transcript.turns), _WITHDRAWN)
        self._withdrawn += 1
        answer = await self._step(request)
        if self._answered is not None:
            del self._answered.messages[:]
            self._answered.messages.extend(answer.messages)
        return END_REASON_ENVIRONMENT_DONE if answer.done else END_REASON_UNSPECIFIED, answer

    async def _no_turn(self, reason: EndReason) -> tuple[EndReason, StepResponse]:
        """As `_turn`, without room for one. An agent may ask in a shorter conversation, as often as it may have turns; what it asks aside
        ends nothing."""
        request = self._request(len(self._transcript.turns), _NO_TURN, reason)
        if self._terms.is_untrained:
            request.is_last = False
            return await self._tell_untrained(request)
        may_go_on = self._limits.is_agents and reason == END_REASON_CONTEXT and self._refused < self._limits.environment.max_turns
        request.is_last = not may_go_on
        self._refused += 1
        self._answered = None
        answer = await self._step(request)
        return END_REASON_UNSPECIFIED if may_go_on and not answer.done else reason, answer

    async def _open(self, *, resume: bool = False) -> OpenResponse:
        start, is_shared = self._start, self._journal.is_read
        answer = await self._environment.open(
            OpenRequest(
                episode_id=self._journal.name if is_shared else start.episode_id,
                attempt=self.number,
                item_json=start.item,
                seed=start.world_seed,
                traceparent=start.traceparent,
                player="" if is_shared else start.player,
                resume=resume,
            )
        )
        self._session = answer.session
        return answer

    async def _begin(self, answer: OpenResponse) -> None:
        self._terms = _Terms.of(answer)
        if answer.HasField("conversation"):
            self._first = await self._conversation(as_conversation(answer.conversation))
        elif answer.messages:
            self._first = await self._conversation(ChatConversation(as_chat(answer.messages)))
        if not self._transcript.turns:
            self._sequence = self._first

    async def _conversation(self, given: ChatConversation) -> TokenSequence:
        """A sequence without a turn."""
        try:
            return TokenSequence(await self._turns.conversation(given), given.tools_json)
        except DatasetError as error:
            raise InvalidItemError(str(error)) from error

    def _room(self) -> _Room:
        limits = self._limits
        context = limits.context_length - len(self._sequence)
        rooms = [_Room(limits.max_new_tokens, END_REASON_LENGTH), _Room(context, END_REASON_CONTEXT)]
        if not self._terms.is_untrained:
            rooms.append(_Room(limits.max_drawn_tokens - self._transcript.drawn, END_REASON_MAX_TOKENS))
        if self._terms.most_tokens:  # what an agent wants is no limit of the run: it may go on
            rooms.append(_Room(self._terms.most_tokens, END_REASON_UNSPECIFIED))
        return min(rooms, key=lambda room: room.tokens)

    async def _draw(self, room: int, transcript: Transcript, name: str) -> Turn | None:
        """A turn of the policy, drawn and parsed; ids of its calls begin with its name. None if its agent is gone meanwhile.

        An engine knows no stop texts. It draws on, and what comes after one is no part of the turn: each token depends on those before it
        alone, so the turn has the tokens that it would have had.
        """
        start, sequence = self._start, self._sequence
        prompt = sequence.context
        asked = digest_of(pack_ids(prompt)) if self._limits.is_agents else ""
        seed = self._seed(asked)

        async def generated() -> Completion | None:
            crash_points.reached("mid-draw")  # of other episodes: the engine draws for all of them
            group = PromptGroup(start.episode_id, prompt, (seed,), int(start.greedy), room)
            return await self._unless_withdrawn(lambda: self._completion_of(group))

        completion = await self._journal.drawn(seed, generated)
        if completion is None:
            return None
        self._asked[asked] += 1
        drawn = DrawnTurn(completion.token_ids, completion.finish, sequence.tools_json, self._terms.stop)
        parsed = await self._turns.parse(drawn)
        turn = transcript.draw(sequence, completion if parsed.kept is None else completion.first(parsed.kept), seed)
        turn.text, turn.stop_text = parsed.text, parsed.stop_text
        for at, call in enumerate(parsed.calls):
            status = _CALL_STATUS[call.status]
            turn.calls.append(ToolCall(call_id=f"{name}.{at}", name=call.name, arguments_json=call.arguments_json, status=status))
        return turn

    async def _completion_of(self, group: PromptGroup) -> Completion:
        (drawn,) = await self._engine.generate([group])
        return drawn.completions[0]

    async def _unless_withdrawn(self, start: Callable[[], Coroutine[Any, Any, Completion]]) -> Completion | None:
        """What is drawn; None if it is for an agent that is gone. A worker is told so of sessions that it has opened, or goes on in."""
        if not self._limits.is_agents:
            return await start()
        if not self._session:
            await self._open(resume=True)
        ordinal = len(self._transcript.turns) + self._refused + self._untrained + self._withdrawn
        return await self._environment.withdrawals.unless_withdrawn(Draw(self._session, ordinal), start)

    def _seed(self, asked: str) -> int:
        """Of the next turn; an agent's is drawn after the prompt with the digest `asked`."""
        if not self._limits.is_agents:
            return turn_seed(self._start.seed, len(self._transcript.turns))
        return asked_turn_seed(self._start.seed, asked, self._asked[asked])

    def _end_after(self, turn: Turn, room: _Room) -> EndReason:
        """Why the episode ends with this turn, as far as the policy decides it; unspecified if it goes on."""
        environment = self._limits.environment
        is_invalid = bool(turn.calls) and not any(call.status == CALL_STATUS_OK for call in turn.calls)
        self._invalid_turns = self._invalid_turns + 1 if is_invalid else 0
        goes_on = {END_REASON_UNSPECIFIED, END_REASON_CONTEXT} if self._limits.is_agents else {END_REASON_UNSPECIFIED}
        if turn.finish == "length" and room.end not in goes_on:
            return room.end
        if self._invalid_turns >= environment.invalid_calls:
            return END_REASON_INVALID_CALLS
        return END_REASON_MAX_TURNS if len(self._transcript.turns) >= environment.max_turns else END_REASON_UNSPECIFIED

    async def _answer(self, turn: Turn, end: EndReason, began: int) -> StepResponse:
        """The environment's answer to the newest turn, which keeps it; drawing began then, in nanoseconds since 1970."""
        drawn = time.time_ns()
        answer = await self._step(self._request(len(self._transcript.turns) - 1, self._told(turn, self._transcript), end))
        self._transcript.times.append(TurnTimes(began, drawn, time.time_ns(), turn.end - turn.start, turn.finish))
        self._answered = turn
        turn.messages.extend(answer.messages)
        turn.state_digest = answer.state_digest
        if answer.HasField("reward"):
            turn.reward = answer.reward
        return answer

    def _told(self, turn: Turn, transcript: Transcript) -> AssistantTurn:
        """A turn of the transcript as the environment is told it, or the agent."""
        told = as_assistant(turn)
        if self._limits.is_agents:
            told.drawn.CopyFrom(drawn_tokens(transcript, turn))
        return told

    async def _step(self, request: StepRequest) -> StepResponse:
        """The answer to a turn."""
        return await self._journal.answered(lambda: self._ask(request))

    async def _ask(self, request: StepRequest) -> StepResponse:
        """The environment's answer to a turn. A session that the service lost is opened again, if its turns can be repeated.

        Raises SessionLostError, which is not counted yet, if they cannot, or were repeated too often.
        """
        while True:
            if not self._session:
                await (self._open(resume=True) if self._journal.is_read else self._open_again(request.turn))
            request.session = self._session
            try:
                return await self._environment.step(request)
            except SessionLostError:
                if self._limits.is_agents or self._journal.is_read or self._lost.next_is_last:
                    raise
                self._lost.count += 1
                self._session = ""
            await asyncio.sleep(PAUSE_SECONDS)

    def _request(self, number: int, assistant: AssistantTurn, end: EndReason = END_REASON_UNSPECIFIED) -> StepRequest:
        is_last = end != END_REASON_UNSPECIFIED
        reason = end_name(end) if is_last else ""
        request = StepRequest(session=self._session, turn=number, assistant=assistant, is_last=is_last, end_reason=reason)
        request.refused, request.untrained, request.withdrawn = self._refused, self._untrained, self._withdrawn
        return request

    async def _open_again(self, turns: int) -> None:
        """Repeats the first turns in a new session. Raises EnvironmentFaultError if the environment answers in another way."""
        before, repeated = self._first.prompt_ids, self._transcript.turns[:turns]
        await self._begin(await self._open())
        answers = [await self._environment.step(self._request(n, as_assistant(turn))) for n, turn in enumerate(repeated)]
        pairs = zip(answers, repeated, strict=True)
        if before != self._first.prompt_ids or any(said(answer) != said(turn) for answer, turn in pairs):
            raise EnvironmentFaultError(
                "the environment answered the same turns in another way when they were repeated; derive all that it does from the seed"
            )

    async def _go_on(self, answer: StepResponse) -> bool:
        """Takes up what is asked next, if the context then has room for another turn."""
        transcript, context = self._transcript, self._limits.context_length
        self._terms = _Terms.of(answer)
        if answer.HasField("conversation"):
            self._sequence = await self._conversation(as_conversation(answer.conversation))
            if not transcript.turns:  # the one before had no room
                self._first = self._sequence
            return len(self._sequence) < context
        last = len(transcript.turns) - 1
        number = answer.after_turn if answer.HasField("after_turn") else last
        if number > last:
            raise EnvironmentFaultError(f"messages follow turn {number} of {last + 1}; name a turn that was drawn, counted from 0")
        try:
            extension = await self._turns.extend(transcript.drawn_in(transcript.turns[number]), as_chat(answer.messages))
        except DatasetError as error:
            raise InvalidItemError(str(error)) from error
        before = await self._without_thinking(number) if extension.ends_thinking else None
        length = transcript.length_to(number) if before is None else len(before)
        if length + len(extension.token_ids) >= context:
            return False
        if before is None:
            self._sequence = transcript.extended(number, extension)
        else:
            self._sequence = transcript.rewritten(number, extension, before)
        return True

    async def _without_thinking(self, number: int) -> tuple[int, ...] | None:
        """The ids `[T]` up to the end of a turn without the thinking in them; None if there is none."""
        so_far = self._transcript.up_to(number)
        before = await self._turns.without_thinking(so_far)
        return None if before == so_far.token_ids else before

    def _over(self, end: EndReason, answer: StepResponse) -> PlayedEpisode:
        """Raises EnvironmentFaultError if nobody gave a reward."""
        rewards = self._rewards
        rewards.add(answer)
        if not rewards.given and not self._limits.has_scorer:
            raise EnvironmentFaultError(
                f"the episode ended ({end_name(end)}) and the environment gave no reward; return one with its last answer, 0 included"
            )
        outcome = SampleReward(status=REWARD_STATUS_OK, reward=rewards.total, components=rewards.components)
        return PlayedEpisode(self._first.prompt_ids, self._transcript, end, outcome, self.number)
