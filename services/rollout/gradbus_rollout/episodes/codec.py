"""Turns of many episodes to the tokenizer's process and back: while one call is in flight, the next one gathers what is asked meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from gradbus.tokenizer.tokenizer import Tokenizer
from gradbus.tokenizer.turns import ChatConversation, ChatMessage, DrawnTurn, Extension, ParsedTurn, TurnAnswer, TurnsSoFar
from gradbus_rollout.episodes.gathered import Gathered


class TurnCodec:
    """Text and calls of turns, and the tokens between them. Every method raises as `Tokenizer`'s do."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._parse = Gathered(tokenizer.parse)
        self._extend = Gathered(tokenizer.extend)
        self._without_thinking = Gathered(tokenizer.without_thinking)

    async def conversation(self, given: ChatConversation) -> tuple[int, ...]:
        """Prompt ids `[P]` of a conversation that an environment begins, or in which an agent asks."""
        (ids,) = await self._tokenizer.conversations([given])
        return ids

    async def parse(self, drawn: DrawnTurn) -> ParsedTurn:
        """Text and calls of a turn."""
        return await self._parse.ask(drawn)

    async def extend(self, drawn: tuple[int, ...], messages: Sequence[ChatMessage]) -> Extension:
        """The ids that follow a turn."""
        return await self._extend.ask(TurnAnswer(drawn, messages))

    async def without_thinking(self, so_far: TurnsSoFar) -> tuple[int, ...]:
        """The ids `[T]` of a sequence without the thinking in its turns."""
        return await self._without_thinking.ask(so_far)
