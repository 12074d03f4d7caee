"""One attempt of an episode that an agent plays: requests come from one side, turns of the policy from the other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from gradbus.finish import WITHDRAWN
from gradbus.v1.environment_service_pb2 import StepRequest
from gradbus_agent.contract import Document, RefusalError, Reply, Verdict
from gradbus_agent.episodes.asks import Ask, Asks, Mark
from gradbus_agent.episodes.lease import Lease
from gradbus_agent.episodes.memory import ByteBudget
from gradbus_agent.episodes.traces import EpisodeTrace
from gradbus_agent.episodes.turns import Opening, policy_turn
from gradbus_agent.matching import Histories, Question
from gradbus_agent.telemetry import count_turn

UNTRAINED_PER_TURN: Final = 4
"""Untrained turns that an episode may have, for each turn of the run's limit."""
WITHDRAWN_PER_TURN: Final = 4
"""Draws of an episode that are cancelled because nobody waits for them, for each turn of the run's limit; those after them end."""
ABANDONED_SECONDS: Final = 1.5
"""A draw is cancelled when nobody waited for it for so long. The SDKs send a lost request again within a second."""


@dataclass(slots=True)
class Step:
    """The newest step, with the reply to it."""

    request: bytes
    reply: Reply | None = None


@dataclass(slots=True)
class Progress:
    """How far an episode has come."""

    turns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    untrained: int = 0
    """Turns that are no part of the sample, and requests for one that had no room."""
    refused: int = 0
    """Requests that had no room in the model's context, without the untrained ones."""
    withdrawn: int = 0
    """Draws that were cancelled."""
    limit: str = ""
    """The run's limit that ended it; its agent still has to say how it went."""
    over: str = ""
    """Why its key is of no use any more."""
    verdict: Verdict | None = None

    @property
    def steps(self) -> int:
        """How many the rollout worker took. The next draw has this ordinal."""
        return self.turns + self.refused + self.untrained + self.withdrawn


class AgentEpisode:
    """One attempt of an episode."""

    def __init__(self, opening: Opening, session: str, budget: ByteBudget) -> None:
        """`budget`: of the run's requests that wait."""
        self.opening = opening
        self.session = session
        self.worker = ""
        """The process that plays it; empty: nothing is known of its life."""
        self.lost: float | None = None
        """Since when that process is gone, by the monotonic clock."""
        self.key_hash = b""
        """Of the key that its agent has; empty while nobody plays it."""
        self.lock = asyncio.Lock()
        """Held by the call of the rollout worker."""
        self.heard = time.monotonic()
        """When the rollout worker called last."""
        self.on_over: Callable[[AgentEpisode], None] = lambda _: None
        self.on_abandoned: Callable[[AgentEpisode], None] = lambda _: None
        """Called when nobody waits any more for what the rollout worker draws."""
        self.reading = asyncio.Lock()
        """Held while a body is read: one of an episode at a time, in the order in which they came."""
        self._lease = Lease(opening.section.step_seconds)
        self._asks = Asks(budget)
        self._histories = Histories()
        self._trace = EpisodeTrace(opening)
        self._progress = Progress()
        self._opened: Reply | None = None
        self._step: Step | None = None
        self._abandoned = -1
        """Ordinal of the newest draw that nobody waited for."""
        self._changed = asyncio.Event()

    @property
    def is_claimed(self) -> bool:
        """Whether an agent has it."""
        return bool(self.key_hash)

    @property
    def is_drawing(self) -> bool:
        """Whether the rollout worker draws a turn: no call of it is due until it has."""
        return self._asks.drawing is not None

    @property
    def withdrawn_draw(self) -> int | None:
        """The ordinal of the turn that the rollout worker draws, if nobody has waited for it for a while; else None."""
        asked, ordinal = self._asks.drawing, self._progress.steps
        return ordinal if self._abandoned == ordinal and asked is not None and not asked.waiting else None

    def is_heard(self, seconds: float) -> bool:
        """Whether its rollout worker waits in a call, or did so within so many seconds."""
        return self.lock.locked() or self.heard >= time.monotonic() - seconds

    @property
    def over(self) -> str:
        """Why it is over; empty while it goes on."""
        return self._progress.over

    # The agent

    def claim(self, key_hash: bytes) -> None:
        """An agent takes it."""
        self.key_hash = key_hash
        self._trace.claimed()
        self._lease.renew()
        self._changed.set()

    def beat(self) -> None:
        """The agent is alive. Raises RefusalError if the episode is over."""
        self._check()
        self._lease.beat()

    def submit(self, question: Question, mark: Mark) -> Ask:
        """The request in the queue, or the earlier one that it repeats. Raises RefusalError."""
        known = self._asks.earlier(question, mark)
        if known is not None and (known.answer.done() or not self._progress.over):
            self._asks.join(known)
            self._abandoned = -1  # somebody waits again; if it leaves too, a while must pass anew
            self._progress.outcomes["replay"] += 1
            count_turn("replay")
            return known
        self._check()
        if self._progress.limit:
            raise self._limit_error()
        if question.request.is_untrained:
            self._check_untrained()
        self._lease.renew()
        ask = self._asks.add(question, mark)
        self._changed.set()
        return ask

    def restart(self) -> Document:
        """The agent begins again: its requests get the answers that they had. Raises RefusalError if the episode is over.

        That is no progress: an agent that crashes and begins again for ever loses its episode as one that only beats.
        """
        self._check()
        self._lease.beat()
        return {"answers": self._asks.rewind()}

    def note_refused(self, mark: Mark) -> None:
        """A request was refused for now, before it could be submitted."""
        self._asks.note_refused(mark)

    def leave(self, ask: Ask, *, is_delivered: bool) -> None:
        """A connection that waited for the answer ends."""
        self._asks.leave(ask, is_delivered=is_delivered)
        self._lease.beat()
        if self._asks.is_abandoned(ask):
            asyncio.get_running_loop().call_later(ABANDONED_SECONDS, self._abandon, ask, ask.left)

    def end(self, verdict: Verdict) -> None:
        """The agent says how it went. Raises RefusalError if the episode ended in another way before."""
        if self._progress.verdict == verdict:
            return
        self._check()
        self._progress.verdict = verdict
        self.finish("its agent ended the episode")

    def counters(self) -> Document:
        """How far it has come."""
        progress = self._progress
        return {
            "episode": self.opening.episode_id,
            "attempt": self.opening.attempt,
            "turns": progress.turns,
            "extended": progress.outcomes["extend"],
            "forked": progress.outcomes["fork"],
            "replayed": progress.outcomes["replay"],
            "untrained": progress.untrained,
            "refused": progress.refused,
            "withdrawn": progress.withdrawn,
            "limit": progress.limit or None,
            "over": progress.over or None,
        }

    def finish(self, reason: str) -> None:
        """Its key is of no use from now on, and whoever waits for a turn is told so.

        After the agent's own end the rollout worker may still draw a turn for a request beside it, which gets its answer.
        """
        if self._progress.over:
            return
        self._progress.over = reason
        error = self._over_error()
        self._asks.refuse_queue(error)
        if self._progress.verdict is None:
            self._asks.refuse_drawing(error)
        self._asks.forget_answers()
        self._histories = Histories()
        self._trace.over(self._progress.turns, reason)
        self._changed.set()
        self.on_over(self)

    def forget(self, reason: str) -> None:
        """Finishes it, if it goes on; no turn comes any more. Only what its agent is told from now on is kept."""
        self.finish(reason)
        self._asks.refuse_drawing(self._over_error())
        self.opening = replace(self.opening, item_json="{}")
        self._asks, self._opened, self._step = Asks(), None, None

    # The rollout worker

    async def until_claimed(self, seconds: float) -> bool:
        """Waits for an agent."""
        try:
            async with asyncio.timeout(seconds):
                while not (self.is_claimed or self.over):
                    await self._wait()
        except TimeoutError:
            return False
        return True

    async def until_over(self) -> None:
        """Waits until it is over."""
        while not self.over:
            await self._wait()

    async def first(self, seconds: float) -> Reply:
        """What the agent asks first."""
        if self._opened is None:
            reply = await self._next(seconds)
            if reply.verdict is not None and reply.verdict.status == "ok":
                return Reply.error("the agent ended the episode before it asked anything; let it send a request first")
            if reply.status == "error":
                return reply
            self._opened = reply
        return self._opened

    async def step(self, request: StepRequest, seconds: float) -> Reply:
        """What the agent asks after a turn of the policy; the newest step again gets its first reply."""
        content = request.SerializeToString(deterministic=True)
        if self._step is None or self._step.request != content:
            if why := self._why_not_next(request):
                return Reply.error(why)
            self._take(request)
            self._step = Step(content)
        return await self._reply(self._step, seconds)

    def _why_not_next(self, request: StepRequest) -> str:
        following = self._progress.turns
        if request.turn == following - 1:
            return f"turn {request.turn} was another one before; a repeated request must equal the first"
        told = request.turn, request.refused, request.untrained, request.withdrawn
        is_next = told == (following, self._progress.refused, self._progress.untrained, self._progress.withdrawn)
        if not is_next or self._opened is None or self._progress.limit:
            return f"turn {request.turn} is not the next one of this session, which is {following}; send the turns in order"
        return ""

    async def _reply(self, step: Step, seconds: float) -> Reply:
        if step.reply is None:
            reply = await self._next(seconds)
            if reply.is_away:
                return reply
            step.reply = reply
        return step.reply

    def _take(self, request: StepRequest) -> None:
        """Gives the turn to the request that waits for it."""
        if request.is_last:
            self._progress.limit = request.end_reason or "end"
        asked = self._asks.drawing
        if request.assistant.finish == WITHDRAWN:
            self._progress.withdrawn += 1
            self._asks.withdraw()
            count_turn("withdrawn")
        elif request.assistant.finish == "none":
            if request.is_untrained:
                self._progress.untrained += 1
            else:
                self._progress.refused += 1
            self._asks.refuse_drawing(self._no_room(request))
            self._lease.renew()
        elif asked is not None:
            self._answer(asked, request)
        if request.is_last:
            self._asks.refuse_queue(self._limit_error())
            self._lease.renew_last()

    def _abandon(self, ask: Ask, left: int) -> None:
        """Nobody waited for a while, unless somebody came since and left too."""
        progress, most = self._progress, WITHDRAWN_PER_TURN * self.opening.section.max_turns
        if self._asks.is_abandoned(ask) and ask.left == left and progress.withdrawn < most:
            self._abandoned = progress.steps
            self.on_abandoned(self)

    def _answer(self, asked: Ask, request: StepRequest) -> None:
        progress = self._progress
        if request.is_untrained:
            turn = policy_turn(self.opening, request, asked.question.request, "untrained")
            progress.untrained += 1
        else:
            is_extending = self._histories.find(asked.question).turn is not None
            turn = policy_turn(self.opening, request, asked.question.request, "extend" if is_extending else "fork")
            progress.turns += 1
            self._histories.add(turn.number, asked.question, turn.message)
        progress.outcomes[turn.outcome] += 1
        count_turn(turn.outcome)
        self._trace.answered(asked.began, turn)
        self._asks.settle(turn)
        self._lease.renew()

    async def _next(self, seconds: float) -> Reply:
        """What the agent does next, as soon as it does something, or an error that passes after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            progress = self._progress
            if progress.verdict is not None:
                return Reply.over(progress.verdict)
            if progress.over:
                return Reply.error(progress.over)
            if not progress.limit and (asked := self._asks.drawing or self._asks.take()) is not None:
                return self._asked(asked.question)
            if self._lease.left <= 0:
                self.finish(f"the agent of episode {self.opening.episode_id} {self._lease.why_over()}")
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return Reply.away(f"the agent of episode {self.opening.episode_id} is alive, and has asked nothing for {seconds:.0f} s")
            try:
                async with asyncio.timeout(min(left, self._lease.left)):
                    await self._wait()
            except TimeoutError:
                continue

    def _asked(self, question: Question) -> Reply:
        match, request = self._histories.find(question), question.request
        if match.turn is None or request.is_untrained:
            return Reply(conversation=request, max_new_tokens=request.max_tokens, stop=request.stop)
        after = match.turn if match.turn != self._progress.turns - 1 else None
        return Reply(messages=match.following, after_turn=after, max_new_tokens=request.max_tokens, stop=request.stop)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _check(self) -> None:
        if self._progress.over:
            raise self._over_error()

    def _check_untrained(self) -> None:
        most = UNTRAINED_PER_TURN * self.opening.section.max_turns
        if self._progress.untrained + self._asks.waiting_untrained >= most:
            message = f"the episode had {most} untrained turns, {UNTRAINED_PER_TURN} for each one that it may have; ask fewer"
            raise RefusalError(400, "untrained_limit", message)

    def _over_error(self) -> RefusalError:
        message = f"the episode {self.opening.episode_id} is over: {self._progress.over}; claim another one"
        return RefusalError(410, "episode_over", message)

    def _limit_error(self) -> RefusalError:
        limit = self._progress.limit
        return RefusalError(403, limit, f"the episode reached the run's limit {limit}; post its end with a reward, and ask no more")

    def _no_room(self, request: StepRequest) -> RefusalError:
        if request.end_reason != "context":
            return self._limit_error()
        if request.is_last:
            advice = "post the episode's end with a reward, and ask no more"
        else:
            advice = "ask with a shorter conversation, or post the episode's end with a reward"
        return RefusalError(400, "context_length_exceeded", f"the conversation leaves no room in the model's context; {advice}")
