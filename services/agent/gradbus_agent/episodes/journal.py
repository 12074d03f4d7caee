"""The steps of an episode, by which another rollout worker takes it over when its own is gone.

They are what the worker told and what it was answered, in order. The next worker is answered the same up to the newest step, and gets the
turns that were drawn, so that it draws none of them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradbus.v1.environment_service_pb2 import AssistantTurn, StepRequest
from gradbus_agent.contract import Reply
from gradbus_agent.episodes.memory import ByteBudget

MAX_BYTES: Final = 1 << 22
"""Of one episode. A longer one ends with its worker."""
_MESSAGE_BYTES: Final = 512
"""That a message takes beside its texts."""


@dataclass(slots=True)
class Step:
    """What the rollout worker told, with the reply to it."""

    told: bytes
    """The request without its session."""
    reply: Reply | None = None


class Journal:
    """The steps of one episode; of one that is too long only the newest."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._steps: list[Step] = []
        self._position = 0
        """Steps that the present worker has told."""
        self._is_whole = True
        self._bytes = 0

    @property
    def can_be_told_again(self) -> bool:
        """Whether another worker could take the episode over."""
        return self._is_whole

    @property
    def newest(self) -> Step | None:
        """The step that the present worker told last."""
        return self._steps[self._position - 1] if self._position else None

    def begin_again(self) -> None:
        """Another worker tells the steps now."""
        self._position = 0

    def known(self, told: bytes) -> Step | None:
        """The newest step if it is told again, or the next one of a worker that was here before, which is then the newest."""
        if (newest := self.newest) is not None and newest.told == told:
            return newest
        if self._position < len(self._steps) and self._steps[self._position].told == told:
            self._position += 1
            return self.newest
        return None

    @property
    def is_at_end(self) -> bool:
        """Whether the present worker has told all steps."""
        return self._position == len(self._steps)

    def add(self, told: bytes, assistant: AssistantTurn) -> Step:
        """The next step of the episode."""
        if not self._is_whole:
            self.clear()
        step = Step(told)
        self._steps.append(step)
        self._position += 1
        if assistant.drawn.version_first != assistant.drawn.version_last:  # a recorded turn has one version
            self._keep_newest()
        self._take(len(told))
        return step

    def answered(self, step: Step, reply: Reply) -> None:
        """The reply to the newest step."""
        step.reply = reply
        self._take(_size(reply))

    def recorded(self) -> AssistantTurn | None:
        """The turn that follows for the present worker, if it was drawn before."""
        if self.is_at_end:
            return None
        assistant = StepRequest.FromString(self._steps[self._position].told).assistant
        return assistant if assistant.finish != "none" else None

    def clear(self) -> None:
        """Forgets all steps."""
        self._budget.give_back(self._bytes)
        self._steps, self._position, self._bytes = [], 0, 0

    def _take(self, count: int) -> None:
        if not self._is_whole:
            return
        if self._bytes + count <= MAX_BYTES and self._budget.take(count):
            self._bytes += count
        else:
            self._keep_newest()

    def _keep_newest(self) -> None:
        """Gives the others up, and what is kept counts for nothing: a request has a bound of its own."""
        newest = self._steps[-1:]
        self.clear()
        self._is_whole = False
        self._steps, self._position = newest, len(newest)


def told_of(request: StepRequest) -> bytes:
    """What a step is known by: all but its session, which is the worker's own."""
    copy = StepRequest()
    copy.CopyFrom(request)
    copy.ClearField("session")
    return copy.SerializeToString(deterministic=True)


def _size(reply: Reply) -> int:
    messages = [*reply.messages, *(reply.conversation.messages if reply.conversation is not None else ())]
    tools = len(reply.conversation.tools_json) if reply.conversation is not None else 0
    texts = sum(len(message.content) + sum(len(call.arguments) for call in message.calls) for message in messages)
    return tools + texts + _MESSAGE_BYTES * len(messages)
