"""A dataset's prompts, tokenised as they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gradbus.formats.jsonl import numbered
from gradbus_rollout.tasks.prompts import PromptEncoder

_CHECKED_ROWS = 10_000
_KEPT_ROWS = 10_000
"""Ids take ten times the room of their text: those of a whole dataset would fill the memory, epoch by epoch."""


class PromptTable:
    """Rows of a prompts object. The first rows are encoded at once, so that a prompt the model cannot take shows early."""

    def __init__(self, encoder: PromptEncoder, content: bytes) -> None:
        """Raises DatasetError, naming the line, for a prompt that is empty or too long."""
        self._encoder = encoder
        self._lines, self._prompts = zip(*((line, row["prompt"]) for line, row in numbered(content)), strict=True)
        self.ids = lru_cache(_KEPT_ROWS)(self._encoded)
        """Token ids of a row's prompt, [P]."""
        for row in range(min(_CHECKED_ROWS, len(self._prompts))):
            self.ids(row)

    def _encoded(self, row: int) -> tuple[int, ...]:
        return self._encoder.encode(self._prompts[row], self._lines[row])

    def text(self, row: int) -> str:
        """The prompt as text: what the scorer sees. Of a chat, what the model was shown."""
        prompt = self._prompts[row]
        return prompt if isinstance(prompt, str) else self._encoder.decode(self.ids(row))

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """Texts of responses' ids."""
        return self._encoder.decode_all(responses)
